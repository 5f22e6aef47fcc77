/*
 * Attributes in HLO's text: one table of names and places. An attribute is written where
 * it says more than its absence, and always with the operators that HLO wants it with.
 */
#include "hlo.h"

#include <string.h>

#include "graph/attr_text.h"

enum kind {
    BOOL,
    DIRECTION,
    FFT,
    INT,
    INTS,
    LABELS,
    ORDER,
    PADDING,
    SLICE,
    TRANSPOSE,
    WINDOW
};

struct row {
    const char *name;
    enum kind kind;
    size_t where;
    enum ap_op always[5];
    int n_always;
};

#define AT(member) offsetof(struct ap_attrs, member)
static const struct row rows[] = {
    {"window", WINDOW, 0, {AP_OP_REDUCE_WINDOW}, 1},
    {"dim_labels", LABELS, 0, {AP_OP_CONVOLUTION}, 1},
    {"lhs_batch_dims", INTS, AT(lhs_batch_dims), {0}, 0},
    {"lhs_contracting_dims", INTS, AT(lhs_contracting_dims), {AP_OP_DOT}, 1},
    {"rhs_batch_dims", INTS, AT(rhs_batch_dims), {0}, 0},
    {"rhs_contracting_dims", INTS, AT(rhs_contracting_dims), {AP_OP_DOT}, 1},
    {"feature_group_count", INT, AT(feature_group_count), {0}, 0},
    {"batch_group_count", INT, AT(batch_group_count), {0}, 0},
    {"dimensions",
     INTS,
     AT(dimensions),
     {AP_OP_BROADCAST, AP_OP_TRANSPOSE, AP_OP_REDUCE, AP_OP_REVERSE, AP_OP_SORT},
     5},
    {"slice", SLICE, 0, {AP_OP_SLICE}, 1},
    {"padding", PADDING, 0, {AP_OP_PAD}, 1},
    {"iota_dimension", INT, AT(iota_dimension), {AP_OP_IOTA}, 1},
    {"direction", DIRECTION, 0, {AP_OP_COMPARE}, 1},
    {"type", ORDER, 0, {0}, 0},
    {"index", INT, AT(index), {AP_OP_GET_TUPLE_ELEMENT}, 1},
    {"dynamic_slice_sizes", INTS, AT(dynamic_slice_sizes), {AP_OP_DYNAMIC_SLICE}, 1},
    {"offset_dims", INTS, AT(offset_dims), {AP_OP_GATHER}, 1},
    {"collapsed_slice_dims", INTS, AT(collapsed_slice_dims), {AP_OP_GATHER}, 1},
    {"start_index_map", INTS, AT(start_index_map), {AP_OP_GATHER}, 1},
    {"operand_batching_dims", INTS, AT(operand_batching_dims), {0}, 0},
    {"start_indices_batching_dims", INTS, AT(start_indices_batching_dims), {0}, 0},
    {"update_window_dims", INTS, AT(update_window_dims), {AP_OP_SCATTER}, 1},
    {"inserted_window_dims", INTS, AT(inserted_window_dims), {AP_OP_SCATTER}, 1},
    {"scatter_dims_to_operand_dims",
     INTS,
     AT(scatter_dims_to_operand_dims),
     {AP_OP_SCATTER},
     1},
    {"input_batching_dims", INTS, AT(input_batching_dims), {0}, 0},
    {"scatter_indices_batching_dims", INTS, AT(scatter_indices_batching_dims), {0}, 0},
    {"index_vector_dim", INT, AT(index_vector_dim), {AP_OP_GATHER, AP_OP_SCATTER}, 2},
    {"slice_sizes", INTS, AT(slice_sizes), {AP_OP_GATHER}, 1},
    {"indices_are_sorted", BOOL, AT(indices_are_sorted), {0}, 0},
    {"unique_indices", BOOL, AT(unique_indices), {0}, 0},
    {"is_stable", BOOL, AT(is_stable), {0}, 0},
    {"exponent_bits", INT, AT(exponent_bits), {AP_OP_REDUCE_PRECISION}, 1},
    {"mantissa_bits", INT, AT(mantissa_bits), {AP_OP_REDUCE_PRECISION}, 1},
    {"fft_type", FFT, 0, {AP_OP_FFT}, 1},
    {"fft_length", INTS, AT(fft_length), {AP_OP_FFT}, 1},
    {"k", INT, AT(k), {AP_OP_TOPK}, 1},
    {"largest", BOOL, AT(largest), {AP_OP_TOPK}, 1},
    {"left_side", BOOL, AT(left_side), {AP_OP_TRIANGULAR_SOLVE}, 1},
    {"lower", BOOL, AT(lower), {AP_OP_CHOLESKY, AP_OP_TRIANGULAR_SOLVE}, 2},
    {"unit_diagonal", BOOL, AT(unit_diagonal), {AP_OP_TRIANGULAR_SOLVE}, 1},
    {"transpose_a", TRANSPOSE, 0, {AP_OP_TRIANGULAR_SOLVE}, 1},
};
#undef AT

static bool is_wanted(const struct row *row, const struct ap_node *node)
{
    const struct ap_attrs *a = node->attrs;
    const char *place = (const char *)a + row->where;
    const char *unset = (const char *)&ap_attrs_default + row->where;
    for (int i = 0; i < row->n_always; i++)
        if (row->always[i] == node->op)
            return true;
    switch (row->kind) {
    case BOOL:
        return *(const bool *)place;
    case INT:
        return *(const int64_t *)(const void *)place !=
               *(const int64_t *)(const void *)unset;
    case INTS:
        return ((const struct ap_ints *)(const void *)place)->n > 0;
    case ORDER:
        return a->total_order;
    case WINDOW:
        return a->n_window > 0;
    case DIRECTION:
    case FFT:
    case LABELS:
    case PADDING:
    case SLICE:
    case TRANSPOSE:
        return false; /* of one operator each, which always has it */
    }
    return false;
}

static void put_value(const struct row *row, const struct ap_attrs *a, struct ap_buf *out)
{
    const void *place = (const char *)a + row->where;
    switch (row->kind) {
    case BOOL:
        ap_buf_puts(out, *(const bool *)place ? "true" : "false");
        return;
    case INT:
        ap_buf_int(out, *(const int64_t *)place);
        return;
    case INTS: {
        const struct ap_ints *ints = place;
        ap_buf_putc(out, '{');
        for (int i = 0; i < ints->n; i++)
            ap_buf_printf(out, "%s%lld", i ? "," : "", (long long)ints->v[i]);
        ap_buf_putc(out, '}');
        return;
    }
    case DIRECTION:
        ap_buf_puts(out, ap_direction_name(a->direction));
        return;
    case FFT:
        ap_buf_puts(out, ap_fft_names[a->fft_type]);
        return;
    case LABELS:
        ap_dim_labels_print(a, out);
        return;
    case ORDER:
        ap_buf_puts(out, "TOTALORDER");
        return;
    case PADDING:
        ap_padding_print(a, out);
        return;
    case SLICE:
        ap_slice_print(a, out);
        return;
    case TRANSPOSE:
        ap_buf_puts(out, a->transpose_a ? "TRANSPOSE" : "NO_TRANSPOSE");
        return;
    case WINDOW:
        ap_window_print(a, out);
        return;
    }
}

void hlo_put_attrs(const struct ap_node *node, struct ap_buf *out)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!is_wanted(&rows[i], node))
            continue;
        ap_buf_printf(out, ", %s=", rows[i].name);
        put_value(&rows[i], node->attrs, out);
    }
}
