/* Texts of compound attributes: read, printed, refused. */
#include "graph/attr_text.h"

#include <string.h>

#include "tap.h"

static struct ap_arena arena;

/* Attributes, and what else there is a text of. */
enum {
    WINDOW = AP_ATTR_window,
    PADDING = AP_ATTR_padding,
    SLICE = AP_ATTR_slice,
    LABELS = AP_ATTR_dim_labels,
    INTS = AP_ATTR_dimensions,
    DIRECTION = AP_ATTR_direction,
    PRECISION = AP_ATTR_operand_precision,
    WORD = AP_ATTR_algorithm,
    PLACEMENT = AP_N_ATTRS,
    SHAPE
};

/* Reads text and prints it again into out; -1 with err set when it is refused. */
static int again(int kind, const char *text, struct ap_buf *out, struct ap_err *err)
{
    struct ap_attrs a = ap_attrs_default;
    struct ap_placement p;
    struct ap_shape s;
    size_t pos = 0;
    int rc;

    if (kind == PLACEMENT) {
        if (!(rc = ap_placement_parse(text, &pos, &p, err)))
            ap_placement_print(&p, out);
    } else if (kind == SHAPE) {
        if (!(rc = ap_shape_parse(&arena, text, &pos, &s, err)))
            ap_shape_print(&s, out);
    } else if (!(rc = ap_attr_parse(&arena, (enum ap_attr)kind, text, &pos, &a, err))) {
        ap_attr_print((enum ap_attr)kind, &a, out);
    }
    ap_buf_puts(out, rc ? "" : text + pos); /* what was not read */
    return rc;
}

static void good(int kind, const char *text, const char *want)
{
    struct ap_buf out = {0};
    struct ap_err err = {""};
    int rc = again(kind, text, &out, &err);

    CHECK(!rc && !strcmp(out.data, want), "'%s' reads as '%s'%s%s", text,
          rc ? "nothing" : out.data, rc ? ": " : "", err.msg);
    ap_buf_free(&out);
}

static void bad(int kind, const char *text, const char *why)
{
    struct ap_buf out = {0};
    struct ap_err err = {""};

    CHECK(again(kind, text, &out, &err) && strstr(err.msg, why), "'%s' is refused: %s",
          text, err.msg);
    ap_buf_free(&out);
}

static void test_good(void)
{
    good(WINDOW, "{size=3x3 pad=1_1x1_1}, x", "{size=3x3 pad=1_1x1_1}, x");
    good(WINDOW, "{size=3 stride=1 pad=0_0 lhs_dilate=1 rhs_dilate=1 rhs_reversal=0}",
         "{size=3}");
    good(WINDOW,
         " { size=1x2 stride=3x1 pad=-1_0x0_-2 lhs_dilate=1x2 rhs_dilate=4x1 "
         "rhs_reversal=0x1 }",
         "{size=1x2 stride=3x1 pad=-1_0x0_-2 lhs_dilate=1x2 rhs_dilate=4x1 "
         "rhs_reversal=0x1}");
    good(WINDOW, "{}", "{}");
    good(PADDING, "0_0x1_-1_2,", "0_0x1_-1_2,");
    good(PADDING, "3_4_0", "3_4");
    good(SLICE, "{[0:4], [1:8:2],[0:1:1]}", "{[0:4],[1:8:2],[0:1]}");
    good(SLICE, "{}", "{}");
    good(PRECISION, "{highest,default}", "{highest,default}");
    good(PRECISION, " {high} x", "{high,high} x");
    good(WORD, "dot_bf16_bf16_f32, x", "dot_bf16_bf16_f32, x");
    good(LABELS, "b01f_01io->b01f", "b01f_01io->b01f");
    good(LABELS, "f10b_i0o1->10fb sharding", "f10b_i0o1->10fb sharding");
    good(LABELS, "bf_io->bf", "bf_io->bf");
    good(PLACEMENT, "R", "R");
    good(PLACEMENT, "S11/64,R", "S11/64,R");
    good(PLACEMENT, "P", "P");
    good(PLACEMENT, "Psum,", "P,");
    good(PLACEMENT, "Pmax", "Pmax");
    good(INTS, "{ 3, -1 ,0}x", "{3,-1,0}x");
    good(INTS, "{-9223372036854775808}", "{-9223372036854775808}");
    good(INTS, "{}", "{}");
    good(DIRECTION, "GT,", "GT,");
    good(AP_ATTR_lower, "1}", "true}");
    good(AP_ATTR_fft_type, "IRFFT", "IRFFT");
    good(AP_ATTR_transpose_a, "ADJOINT,", "TRANSPOSE,");
    good(AP_ATTR_total_order, "SIGNED", "FLOAT");
    good(SHAPE, "f32[8,4]{1,0} %x", "f32[8,4] %x");
    good(SHAPE, "bf16[]", "bf16[]");
    good(SHAPE, "f32[2]{0:T(8,128)(2,1)S(1)}", "f32[2]");
    good(SHAPE, "(f32[8]{0}, /*index=1*/(s32[], pred[0]), ())",
         "(f32[8], (s32[], pred[0]), ())");
    good(SHAPE, "f32[3] {\n", "f32[3] {\n");
}

static void test_bad(void)
{
    bad(WINDOW, "{size=3x3 pad=1_1}", "pad has 1 dimensions, not 2");
    bad(WINDOW, "{size=3x3 size=3x3}", "given twice");
    bad(WINDOW, "{shape=3}", "expected size=");
    bad(WINDOW, "{size=3", "expected size=");
    bad(WINDOW, "{size=3 rhs_reversal=2}", "expected 0 or 1");
    bad(WINDOW, "{size=1x1x1x1x1x1x1x1x1x1x1x1x1}", "more than 12");
    bad(PADDING, "0_0x1", "expected '_'");
    bad(PRECISION, "{lowest,high}", "expected {default, high or highest");
    bad(PRECISION, "{high,high,high}", "for two operands");
    bad(PRECISION, "high", "expected '{'");
    bad(WORD, "{x}", "expected a word");
    bad(PADDING, "0_0_-1", "negative interior");
    bad(SLICE, "{[0:4],[1]}", "expected ':'");
    bad(SLICE, "{[0:99999999999999999999]}", "64 bits");
    bad(LABELS, "b01f_01io->b0f", "2 spatial dimensions, then 1");
    bad(LABELS, "b00f_01io->b01f", "occurs twice");
    bad(LABELS, "b02f_01io->b01f", "spatial dimension 1 is missing");
    bad(LABELS, "b01_01io->b01f", "is missing");
    bad(LABELS, "b0?f_01io->b01f", "unlabelled");
    bad(LABELS, "b01f01io", "occurs twice");
    bad(PLACEMENT, "S12", "not between 0 and 11");
    bad(PLACEMENT, "S1/0", "stride > 0");
    bad(PLACEMENT, "Pmean", "'mean' is not a reduction");
    bad(PLACEMENT, "X", "expected R, P or S");
    bad(INTS, "{1 2}", "expected ','");
    bad(INTS, "{1", "expected ','");
    bad(INTS, "{9223372036854775808}", "64 bits");
    bad(DIRECTION, "XX", "expected EQ");
    bad(AP_ATTR_lower, "yes", "true or false");
    bad(AP_ATTR_axes, "0", "no spelling");
    bad(SHAPE, "f33[2]", "'f33' is not supported");
    bad(SHAPE, "f32[?]", "dynamic");
    bad(SHAPE, "f32[<=4]", "dynamic");
    bad(SHAPE, "f32[-4]", "size >= 0");
    bad(SHAPE, "f32[1,1,1,1,1,1,1,1,1,1,1,1,1]", "more than 12");
    bad(SHAPE, "f32[2", "expected");
    bad(SHAPE, "(f32[2]", "expected");
    bad(SHAPE, "((((((((((f32[2]))))))))))", "too deep");
    bad(SHAPE, "f32[2]{0", "without");
    bad(SHAPE, "", "expected a shape");
}

int main(void)
{
    test_good();
    test_bad();
    ap_arena_free(&arena);
    return tap_done();
}
