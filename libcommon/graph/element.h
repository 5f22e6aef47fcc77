/* Single elements of any dtype, as bytes. */
#ifndef AP_ELEMENT_H
#define AP_ELEMENT_H

#include "graph/graph.h"

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

#endif
