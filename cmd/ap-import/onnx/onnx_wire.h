/*
 * The wire format of protocol buffers: a message is a row of fields, each a number and a
 * value that is a varint, 4 or 8 bytes, or a row of bytes (a text, a message, packed
 * numbers). Nothing is copied; nothing outside of [p, end) is read.
 */
#ifndef ONNX_WIRE_H
#define ONNX_WIRE_H

#include "base/base.h"

struct pb {
    const uint8_t *p, *end;
    bool bad; /* malformed: pb_next ended early */
};

enum pb_wire { PB_VARINT = 0, PB_FIX64 = 1, PB_BYTES = 2, PB_FIX32 = 5 };

struct pb_field {
    uint64_t number;
    enum pb_wire wire;
    uint64_t value;  /* varint and fixed ones */
    struct pb bytes; /* PB_BYTES */
};

/* The next field; false at the end, or if the text is malformed (m->bad). */
bool pb_next(struct pb *m, struct pb_field *f);
/* A varint; false and m->bad if there is none. */
bool pb_varint(struct pb *m, uint64_t *v);

static inline size_t pb_len(const struct pb *m)
{
    return (size_t)(m->end - m->p);
}

#endif
