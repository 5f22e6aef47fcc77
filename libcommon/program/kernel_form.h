/* Groups of a program that a device runs as one kernel each: what they may consist of. */
#ifndef AP_KERNEL_FORM_H
#define AP_KERNEL_FORM_H

#include "graph/graph.h"

enum ap_kernel_kind {
    AP_KERNEL_PASS, /* element by element */
    AP_KERNEL_ROWS, /* row by row: reduces over the last dimensions, and what follows */
    AP_KERNEL_COLS  /* reduces over any dimensions, and what their operand is made of */
};

/* PASS and COLS: one row of `cols` elements. ROWS: rows of `cols` elements each. */
struct ap_kernel_form {
    enum ap_kernel_kind kind;
    int64_t rows, cols;
};

/*
 * The form of a group: nodes first .. end - 1, all of one kernel (attribute `kernel`).
 * NULL with the form set; else why it has none, with the node that is in the way.
 *
 *   PASS  Elementwise operators, broadcasts, iotas, scalar constants, reshapes, and
 *         *loads*: transposes and slices (of stride 1) of values from outside. Members
 *         have n elements or one, and correspond by their linear index.
 *   ROWS  The same, and reduces (ap_kernel_reduces) of values of rows * cols elements
 * over trailing dimensions of cols elements. Members have rows * cols elements, one for
 *         each row, or one. A row's value is broadcast within its row.
 *   COLS  Reduces with equal dimensions of operand and attribute that nobody in the group
 *         reads, and members of as many elements as their operands, or one.
 */
const char *ap_kernel_form_of(const struct ap_graph *g, int first, int end,
                              struct ap_kernel_form *form, int *where);

/* Whether a node may be a member that has an element for each of its result's. */
bool ap_kernel_takes(const struct ap_graph *g, int node);
/* Whether it is a reduce of one operand, by a known reducer, that starts from its neutral
 * element, a scalar constant. */
bool ap_kernel_reduces(const struct ap_graph *g, int node);
/* Of a reduce: elements that become one, if they lie one after the other; else 0. */
int64_t ap_kernel_row(const struct ap_graph *g, int node);
/* Whether node may read element i / n, or i for n = 1, of member `in` for its element i:
 * a broadcast along leading dimensions. n: elements of node for each one of `in`. */
bool ap_kernel_spreads(const struct ap_graph *g, int in, int node);

#endif
