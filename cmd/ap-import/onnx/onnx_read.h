/*
 * An ONNX model as its file has it: nodes, attributes, initialisers. Names are copied,
 * tensors refer to the file's bytes.
 */
#ifndef ONNX_READ_H
#define ONNX_READ_H

#include "graph/graph.h"
#include "onnx/onnx_wire.h"

struct onnx_tensor {
    const char *name;
    int type; /* TensorProto.DataType */
    struct ap_shape shape;
    const void *data; /* not aligned; NULL: external and not mapped */
    int64_t bytes;    /* of data; equals the shape's, or 0 with elems > 0: absent */
    bool external;
    const char *location;   /* external: a separate file in the model's folder */
    int64_t offset, length; /* external; length -1: to the end */
};

struct onnx_attr {
    const char *name;
    struct pb tensor; /* TensorProto, p NULL if none */
    bool has_f, has_i, has_s, has_graph;
    float f;
    int64_t i;
    const char *s;
    struct ap_ints ints;
    int n_floats;
    const float *floats;
    int n_strings;
};

struct onnx_node {
    const char *name, *op, *domain; /* domain "": ai.onnx */
    int n_in, n_out, n_attrs;
    const char **in, **out; /* "" for one that is left out */
    const struct onnx_attr *attrs;
};

/* An input or output of the graph. */
struct onnx_value {
    const char *name;
    int type;       /* 0: no tensor, or not said */
    bool has_shape; /* else rank and dims mean nothing */
    int rank;
    int64_t dims[AP_MAX_RANK];       /* -1: not a number */
    const char *symbol[AP_MAX_RANK]; /* of those, "" without a name */
};

struct onnx_model {
    const char *name;
    int64_t opset; /* of the domain "", 0 if none */
    int n_nodes, n_inits, n_inputs, n_outputs;
    struct onnx_node *nodes;
    struct onnx_tensor *inits;
    struct onnx_value *inputs, *outputs;
};

/* The file, and where to complain. */
struct onnx_file {
    struct ap_arena *arena;
    const char *path; /* for messages, and to find files with external data */
    const uint8_t *data;
    size_t len;
    struct ap_err *err;
    bool unsupported; /* legal but not supported (exit 2) */
};

/* "FILE: ..." into the error; the second marks it as unsupported. Both return -1. */
int onnx_fail(struct onnx_file *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int onnx_refuse(struct onnx_file *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* -1 with f->err set. Linear in the file. */
int onnx_read(struct onnx_file *f, struct onnx_model *m);
/* One TensorProto; `what` says whose for messages. External data is not looked at. */
int onnx_read_tensor(struct onnx_file *f, struct pb bytes, const char *what,
                     struct onnx_tensor *t);
/* Maps the file of a tensor with external data, if it has any. */
int onnx_map_external(struct onnx_file *f, struct onnx_tensor *t);
/* AP_N_DTYPES when the graph cannot have the type. */
enum ap_dtype onnx_dtype(int64_t type);

#endif
