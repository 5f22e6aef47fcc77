/* Constants as JSON. */
#ifndef AP_LITERAL_H
#define AP_LITERAL_H

#include "doc/doc.h"
#include "graph/element.h"

/*
 * JSON of a literal: a bare scalar (of a shape with dimensions: splat), a flat row-major
 * array, or "elided". Scalars: true and false for pred; numbers, "nan", "inf", "-inf" for
 * floats, with enough digits to read back bit-equal (but for the bits of a NaN);
 * integers, a string for u64 above INT64_MAX; [re,im] for complex.
 */
int ap_literal_from_json(struct ap_arena *arena, const json_t *value,
                         const struct ap_shape *shape, const struct ap_at *at,
                         struct ap_literal *literal, struct ap_err *err);
void ap_literal_to_json(const struct ap_literal *literal, const struct ap_shape *shape,
                        struct ap_buf *out);

#endif
