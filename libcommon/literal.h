/* Constants: elements of any dtype as bytes, and their JSON. */
#ifndef AP_LITERAL_H
#define AP_LITERAL_H

#include "doc.h"

/*
 * Writes v, rounded to nearest even, as an element of a float or complex (imaginary part
 * 0) dtype at out. False when v is finite but does not fit; out is infinite or NaN then.
 */
bool ap_elem_from_double(enum ap_dtype dtype, double v, void *out);
/* The element of a float dtype (complex: the real part) at p. */
double ap_elem_to_double(enum ap_dtype dtype, const void *p);
/* Writes v as an element of an integer dtype or pred; false when it does not fit. */
bool ap_elem_from_int(enum ap_dtype dtype, int64_t v, void *out);
/* The element of an integer dtype or pred at p; u64 keeps its bits. */
int64_t ap_elem_to_int(enum ap_dtype dtype, const void *p);

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
