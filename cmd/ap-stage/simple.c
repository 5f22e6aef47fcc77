#include "simple.h"

struct stage_simplicity stage_simplicity_of(const struct ap_line *line, bool differ)
{
    const struct ap_degrees *d = &line->degrees;
    const int64_t experts = d->expert > 1 ? d->expert : 1;
    const int kinds = (d->data > 1 || d->zero > 0) + (d->tensor > 1) + (d->context > 1) +
                      (experts > 1) + (line->pipeline > 1);

    return (struct stage_simplicity){
        {differ, kinds, (line->pipeline > 1) + ap_schedule_traits[line->schedule].splits,
         line->chunks, d->tensor * d->context * experts * line->pipeline}};
}

int stage_simplicity_compare(const struct stage_simplicity *a,
                             const struct stage_simplicity *b)
{
    for (int i = 0; i < STAGE_N_TRAITS; i++)
        if (a->trait[i] != b->trait[i])
            return a->trait[i] < b->trait[i] ? -1 : 1;
    return 0;
}
