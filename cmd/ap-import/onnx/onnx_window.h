/* Windows of convolutions and pools, from their attributes. */
#ifndef ONNX_WINDOW_H
#define ONNX_WINDOW_H

#include "onnx/onnx.h"

/* Strides and dilations; pads 0. False and failed when they do not fit. */
bool ox_window_steps(struct ox *c, int n, const int64_t *kernel, struct ap_window_dim *w);
/*
 * The same with padding, by auto_pad, pads and ceil_mode (which may add to pad_hi), for
 * inputs of these extents.
 */
bool ox_window(struct ox *c, int n, const int64_t *in, const int64_t *kernel,
               struct ap_window_dim *w);
/* Convolution of the node's attributes, without bias. */
int ox_conv_of(struct ox *c, int x, int w);

#endif
