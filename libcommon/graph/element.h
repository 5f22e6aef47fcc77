/* Single elements of any dtype, as bytes, and elementwise operators on single numbers. */
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

/* ---- operators ---- */

/*
 * The node's integer or truth value from its operands' v, which are integers or truth
 * values of type dtype (of a select: v[0] is the choice). False for operators that are
 * not known here, and where HLO leaves the result open.
 */
bool ap_eval_int(const struct ap_node *node, enum ap_dtype dtype, const int64_t *v,
                 int64_t *out);

/*
 * The node's value from its operands' v, in double precision, not rounded to its type;
 * truth values are 0 and 1. False for operators that are not known here.
 */
bool ap_eval_float(const struct ap_node *node, const double *v, double *out);

#endif
