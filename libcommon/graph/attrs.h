/* Attributes one by one, as attrs.def lists them. */
#ifndef AP_ATTRS_H
#define AP_ATTRS_H

#include "graph/graph.h"

/* The kind of an attribute's value, with its spelling in HLO. */
enum ap_attr_kind {
    AP_ATTR_IS_AXES, /* mesh axes, one bit each */
    AP_ATTR_IS_BOOL,
    AP_ATTR_IS_COMP,       /* id of a computation, -1 for none */
    AP_ATTR_IS_DIM_LABELS, /* "b01f_01io->b01f" */
    AP_ATTR_IS_DIRECTION,  /* "EQ" */
    AP_ATTR_IS_FFT,        /* "RFFT" */
    AP_ATTR_IS_INT,        /* in JSON 0 or more */
    AP_ATTR_IS_INTS,       /* "{1,0,2}" */
    AP_ATTR_IS_LAYOUT,
    AP_ATTR_IS_ORDER,   /* a bool that HLO spells TOTALORDER, or something else */
    AP_ATTR_IS_PADDING, /* lo_hi or lo_hi_interior per dimension: "0_0x1_1_2" */
    AP_ATTR_IS_PART, /* the origin of a parameter, on which no computed value depends */
    AP_ATTR_IS_PRECISION, /* of two operands: "{highest,default}" */
    AP_ATTR_IS_RED,
    AP_ATTR_IS_REDUCER, /* id of a reducer, -1 for none */
    AP_ATTR_IS_SHAPE,
    AP_ATTR_IS_SLICE, /* "{[0:4],[1:8:2]}" */
    AP_ATTR_IS_SPLIT,
    AP_ATTR_IS_STRING,
    AP_ATTR_IS_TRANSPOSE, /* a bool that HLO spells NO_TRANSPOSE, or something else */
    AP_ATTR_IS_VALUE,
    AP_ATTR_IS_WORD,  /* a string that HLO spells without quotes */
    AP_ATTR_IS_WINDOW /* "{size=3x3 pad=1_1x1_1}"; "{}": no dimensions */
};

enum ap_attr {
#define AP_ATTR(name, kind, member, hlo) AP_ATTR_##name,
#include "graph/attrs.def"
    AP_N_ATTRS
};

struct ap_attr_info {
    const char *name; /* in JSON */
    const char *hlo;  /* in HLO text, NULL for none */
    enum ap_attr_kind kind;
    size_t offset; /* of the member in struct ap_attrs */
};
extern const struct ap_attr_info ap_attr_table[AP_N_ATTRS];

/* A set of attributes: bit AP_ATTR_<name> for each. */
__extension__ typedef unsigned __int128 ap_attr_set;
_Static_assert(AP_N_ATTRS <= 128, "sets of attributes are 128 bits");
static inline ap_attr_set ap_attr_bit(enum ap_attr attr)
{
    return (ap_attr_set)1 << attr;
}
/* The first attribute of a set that is not empty. */
static inline enum ap_attr ap_attr_first(ap_attr_set set)
{
    const uint64_t low = (uint64_t)set;
    return (enum ap_attr)(low ? __builtin_ctzll(low)
                              : 64 + __builtin_ctzll((uint64_t)(set >> 64)));
}

/* The attributes that an operator requires: AP_ATTR_OF of attrs.def. */
enum ap_attr_need { AP_ATTR_IN_JSON = 1, AP_ATTR_IN_HLO = 2, AP_ATTR_TO_HLO = 4 };
ap_attr_set ap_attrs_needed(enum ap_op op, enum ap_attr_need need);
/* The attributes whose values differ from their defaults. */
ap_attr_set ap_attrs_given(const struct ap_attrs *attrs);

/*
 * The attribute of this name in JSON, or in HLO text; AP_N_ATTRS if the name is unknown.
 */
enum ap_attr ap_attr_find(const char *name, size_t len);
enum ap_attr ap_attr_find_hlo(const char *name, size_t len);

static inline const void *ap_attr_place(enum ap_attr attr, const struct ap_attrs *attrs)
{
    return (const char *)attrs + ap_attr_table[attr].offset;
}
static inline void *ap_attr_place_of(enum ap_attr attr, struct ap_attrs *attrs)
{
    return (char *)attrs + ap_attr_table[attr].offset;
}

/*
 * Whether two nodes have equal values of an attribute that both give; ids of reducers are
 * not compared. shape is the shape of both nodes' `value`.
 */
bool ap_attr_equal(enum ap_attr attr, const struct ap_attrs *a, const struct ap_attrs *b,
                   const struct ap_shape *shape);
/*
 * A hash of the value of an attribute that is given; it is equal if ap_attr_equal holds.
 */
uint64_t ap_attr_hash(enum ap_attr attr, const struct ap_attrs *attrs,
                      const struct ap_shape *shape);

/* The shape of the data in `value`: a constant of a program holds the whole tensor. */
static inline const struct ap_shape *ap_attr_value_shape(const struct ap_node *node)
{
    return node->attrs->global ? node->attrs->global : &node->shape;
}

#endif
