#include "onnx/onnx_wire.h"

bool pb_varint(struct pb *m, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        uint8_t byte = *m->p++;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    m->bad = true;
    return false;
}

static bool fixed(struct pb *m, int n, uint64_t *v)
{
    if (m->end - m->p < n) {
        m->bad = true;
        return false;
    }
    *v = 0;
    for (int i = 0; i < n; i++)
        *v |= (uint64_t)m->p[i] << (8 * i);
    m->p += n;
    return true;
}

bool pb_next(struct pb *m, struct pb_field *f)
{
    uint64_t key;
    *f = (struct pb_field){0};
    if (m->bad || m->p == m->end || !pb_varint(m, &key))
        return false;
    f->number = key >> 3;
    f->wire = (enum pb_wire)(key & 7);
    switch ((int)f->wire) {
    case PB_VARINT:
        return pb_varint(m, &f->value);
    case PB_FIX64:
        return fixed(m, 8, &f->value);
    case PB_FIX32:
        return fixed(m, 4, &f->value);
    case PB_BYTES:
        if (!pb_varint(m, &f->value) || f->value > pb_len(m))
            break;
        f->bytes = (struct pb){m->p, m->p + f->value, false};
        m->p += f->value;
        return true;
    }
    m->bad = true;
    return false;
}
