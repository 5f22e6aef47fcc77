/*
 * Attributes in HLO's own text: "{size=3x3 pad=1_1x1_1}", "0_0x1_1_2", "{[0:4],[1:8:2]}",
 * "b01f_01io->b01f", "EQ", "true" (attrs.h lists the spelling of each kind); and one
 * placement of a layout, "S1/64".
 *
 * A parser reads NUL-terminated text from *pos on (blanks in front are skipped), moves
 * *pos past what it read and fills the attribute. -1 with err set, without a place, if
 * the text is malformed; *pos is then the place of the error. A printer writes the
 * shortest text that reads back as the same attribute.
 */
#ifndef AP_ATTR_TEXT_H
#define AP_ATTR_TEXT_H

#include "graph/attrs.h"

/* An attribute that has a spelling in HLO (windows, lists, ...: ap_attr_table's hlo). */
int ap_attr_parse(struct ap_arena *arena, enum ap_attr attr, const char *text,
                  size_t *pos, struct ap_attrs *attrs, struct ap_err *err);
void ap_attr_print(enum ap_attr attr, const struct ap_attrs *attrs, struct ap_buf *out);

/* "{1,0,2}", as in dimensions={1,0,2}; "{}" gives n = 0. */
int ap_ints_parse(struct ap_arena *arena, const char *text, size_t *pos,
                  struct ap_ints *ints, struct ap_err *err);

/* "R", "S<dim>", "S<dim>/<stride>", "P" (sum) or "Pprod", "Pmax", "Pmin", "Pand", "Por".
 */
int ap_placement_parse(const char *text, size_t *pos, struct ap_placement *placement,
                       struct ap_err *err);
void ap_placement_print(const struct ap_placement *placement, struct ap_buf *out);

#endif
