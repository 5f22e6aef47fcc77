/* A node's attributes as members of its JSON object. */
#ifndef AP_ATTR_JSON_H
#define AP_ATTR_JSON_H

#include "doc/doc.h"

/*
 * Fills node->attrs from the members of o, the node's object; op and shape are known.
 * Members that are no attributes are left alone.
 */
int ap_attrs_from_json(struct ap_arena *arena, json_t *o, const struct ap_at *at,
                       struct ap_node *node, struct ap_err *err);
/* Writes ,"name":value for every attribute that is not at its default. */
void ap_attrs_to_json(const struct ap_node *node, struct ap_buf *out);

/* {"index":3,"dim":0,"part":1,"parts":2}, further splits as `then`; at names o. */
int ap_part_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_part **out, struct ap_err *err);
void ap_part_to_json(struct ap_buf *out, const char *key, const struct ap_part *p);

/* Reads a shape from HLO's text, which must have nothing after it. */
int ap_shape_from_text(struct ap_arena *arena, const char *text, const struct ap_at *at,
                       struct ap_shape *shape, struct ap_err *err);

#endif
