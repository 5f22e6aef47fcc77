#include "graph/element.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"

/* Dtype of a complex dtype's parts, or dtype itself. */
static enum ap_dtype part_of(enum ap_dtype dtype)
{
    return dtype == AP_C64 ? AP_F32 : dtype == AP_C128 ? AP_F64 : dtype;
}

bool ap_elem_from_double(enum ap_dtype dtype, double v, void *out)
{
    enum ap_dtype part = part_of(dtype);
    float odd = ap_f64_to_f32_odd(v);
    float f = (float)v;
    uint16_t h = part == AP_F16 ? ap_f32_to_f16(odd) : ap_f32_to_bf16(odd);
    uint8_t b = part == AP_F8E5M2 ? ap_f32_to_f8e5m2(odd) : ap_f32_to_f8e4m3fn(odd);

    memset(out, 0, (size_t)ap_dtype_size(dtype));
    if (part == AP_F64)
        memcpy(out, &v, sizeof(v));
    else if (part == AP_F16 || part == AP_BF16)
        memcpy(out, &h, sizeof(h));
    else if (part == AP_F8E4M3FN || part == AP_F8E5M2)
        memcpy(out, &b, sizeof(b));
    else
        memcpy(out, &f, sizeof(f));
    return !isfinite(v) || isfinite(ap_elem_to_double(dtype, out));
}

double ap_elem_to_double(enum ap_dtype dtype, const void *p)
{
    enum ap_dtype part = part_of(dtype);
    double v;
    float f;
    uint16_t h;
    uint8_t b;

    if (part == AP_F64) {
        memcpy(&v, p, sizeof(v));
        return v;
    }
    if (part == AP_F16 || part == AP_BF16) {
        memcpy(&h, p, sizeof(h));
        return part == AP_F16 ? ap_f16_to_f32(h) : ap_bf16_to_f32(h);
    }
    if (part == AP_F8E4M3FN || part == AP_F8E5M2) {
        memcpy(&b, p, sizeof(b));
        return part == AP_F8E5M2 ? ap_f8e5m2_to_f32(b) : ap_f8e4m3fn_to_f32(b);
    }
    memcpy(&f, p, sizeof(f));
    return f;
}

bool ap_elem_from_int(enum ap_dtype dtype, int64_t v, void *out)
{
    memcpy(out, &v, (size_t)ap_dtype_size(dtype)); /* little endian */
    if (dtype == AP_PRED)
        return v == 0 || v == 1;
    if (dtype == AP_U64)
        return v >= 0;
    return ap_elem_to_int(dtype, out) == v;
}

int64_t ap_elem_to_int(enum ap_dtype dtype, const void *p)
{
    int bits = 8 * ap_dtype_size(dtype);
    uint64_t u = 0;

    memcpy(&u, p, (size_t)bits / 8);
    if (dtype >= AP_S8 && dtype <= AP_S64 && u >> (bits - 1) && bits < 64)
        u |= UINT64_MAX << bits;
    return (int64_t)u;
}
