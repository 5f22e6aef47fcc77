/* The forms of groups of a program that a device runs as one kernel each. */
#ifndef AP_KERNEL_FORM_H
#define AP_KERNEL_FORM_H

#include "graph/graph.h"

enum ap_kernel_kind {
    AP_KERNEL_PASS, /* element by element */
    AP_KERNEL_ROWS, /* row by row: reduces over the last dimensions, and operators on the
                       results */
    AP_KERNEL_COLS  /* reduces over any dimensions, and operators that make their operand
                     */
};

/* PASS and COLS: one row of `cols` elements. ROWS: rows of `cols` elements each. */
struct ap_kernel_form {
    enum ap_kernel_kind kind;
    int64_t rows, cols;
};

/*
 * The form of a group: nodes first .. end - 1, all of one kernel (attribute `kernel`).
 * Returns NULL with the form set, or else the reason why the group has no form, with the
 * node that prevents it.
 *
 *   PASS  Elementwise operators, broadcasts, iotas, scalar constants, reshapes, and
 *         *loads*: transposes and slices (of stride 1) of values from outside. Members
 *         have n elements or one, and correspond by their linear index.
 *   ROWS  The same, and reduces (ap_kernel_reduces) of values of rows * cols elements
 *         over trailing dimensions of cols elements. Members have rows * cols elements,
 *         one for each row, or one. A row's value is broadcast within its row.
 *   COLS  Reduces with equal dimensions of operand and attribute that no member of the
 *         group reads, and members with the same number of elements as their operands,
 *         or with one element.
 */
const char *ap_kernel_form_of(const struct ap_graph *g, int first, int end,
                              struct ap_kernel_form *form, int *where);

/* Whether a node may be a member that is computed element by element. */
bool ap_kernel_takes(const struct ap_graph *g, int node);
/* Whether a node is a reduce of one operand, by a known reducer, that starts from the
 * reducer's neutral element, a scalar constant. */
bool ap_kernel_reduces(const struct ap_graph *g, int node);
/* The number of elements that a reduce adds up to one, if they are contiguous; else 0. */
int64_t ap_kernel_row(const struct ap_graph *g, int node);
/* Whether node may read element i / n, or i for n = 1, of member `in` for its element i:
 * a broadcast along leading dimensions. n: elements of node for each one of `in`. */
bool ap_kernel_spreads(const struct ap_graph *g, int in, int node);

#endif
