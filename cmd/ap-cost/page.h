/* Private to ap-cost: a plan as a page for a browser (html/page.html with its data). */
#ifndef PAGE_H
#define PAGE_H

#include "price.h"

/* One plan of the page: an object of its list "plans". file: its name for people. */
void page_put_plan(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, const char *file, struct ap_buf *out);

/* The page of plans, objects with commas in between. */
void page_make(const struct ap_buf *plans, struct ap_buf *out);

/* ---- private: page_layers.c ---- */

/* One stage: its own graph and conversions. */
struct page_part {
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
};
/* Member "layers": weights, activations and collectives of each, as lists. */
void page_put_layers(struct ap_arena *arena, const struct page_part *part,
                     struct ap_buf *out);

/* The template before the data and after it, made by the Makefile. */
extern const char page_head[], page_tail[];

#endif
