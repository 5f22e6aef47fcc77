/* Families (graph/families.h) as the document's section. */
#ifndef AP_FAMILIES_JSON_H
#define AP_FAMILIES_JSON_H

#include "doc/doc.h"
#include "graph/families.h"

void ap_families_to_json(struct ap_arena *arena, const struct ap_graph *g,
                         const struct ap_families *f, struct ap_buf *out);
/* Reads and checks (ap_families_check). */
int ap_families_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, struct ap_families *f,
                          struct ap_err *err);
/* Reads the families of the document's graph; returns 1 if the document has none. Errors
 * name the file. */
int ap_doc_families(struct ap_arena *arena, const struct ap_doc *doc,
                    const struct ap_graph *g, struct ap_families *f, struct ap_err *err);

#endif
