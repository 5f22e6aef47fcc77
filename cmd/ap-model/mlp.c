/* A classifier of vectors: dense layers with relu. */
#include "model.h"

int model_mlp(struct model *m)
{
    int64_t layers = m->size[MODEL_LAYERS];
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_FEATURES]};

    int x = model_input(m, "x", AP_F32, 2, dims);
    int y = model_input(m, "y", AP_S32, 1, dims);
    for (int64_t i = 0; i < layers; i++) {
        bool last = i + 1 == layers;
        x = model_dense(m, model_path(m, "mlp/fc_%lld", (long long)i), x,
                        m->size[last ? MODEL_CLASSES : MODEL_HIDDEN], true);
        model_scope(m, "mlp/act_%lld", (long long)i);
        if (!last)
            x = model_relu(m, x);
    }
    return model_loss(m, x, y);
}
