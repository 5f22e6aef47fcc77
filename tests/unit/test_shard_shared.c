/* The cache of named plans that the servers of one document share. */
#include "serve/serve.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

static const struct ap_mesh wide = {.n_axes = 2, .size = {4, 2}};
static const struct ap_mesh tall = {.n_axes = 2, .size = {2, 4}};
static const struct ap_mesh flat = {.n_axes = 1, .size = {8}};

/* Publishes a plan, as another process does. */
static void publish(struct serve_shared *shared, int item)
{
    struct serve_named_plan *w = serve_shared_room(shared, sizeof *w);
    *w = (struct serve_named_plan){.row = 3, .mesh = wide, .exists = true};
    serve_shared_end(shared, item, w);
}

int main(void)
{
    struct serve_shared *shared = serve_shared_new(10, 20);
    bool begun = true;
    int status = -1;

    CHECK(shared, "there is shared memory");
    if (!shared)
        return tap_done();
    CHECK(!serve_shared_find(shared, 3, &wide, &begun) && !begun, "it starts empty");
    int item = serve_shared_begin(shared, 3, &wide);
    CHECK(!serve_shared_find(shared, 3, &tall, &begun) && begun,
          "a plan that a process has begun is reported");
    CHECK(!serve_shared_find(shared, 2, &wide, &begun) && !begun,
          "of this named plan alone");
    CHECK(!serve_shared_find(shared, 3, &flat, &begun) && !begun,
          "on meshes of as many axes");
    pid_t pid = fork();
    if (pid == 0) {
        publish(shared, item);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    const struct serve_named_plan *w = serve_shared_find(shared, 3, &tall, &begun);
    CHECK(status == 0 && w && w->exists && w->mesh.size[0] == 4,
          "a plan of another process is read, on all meshes that answer its queries in "
          "the same way");
    CHECK(!serve_shared_room(shared, (size_t)1 << 40), "memory ends");
    CHECK(!serve_shared_room(shared, 1), "and stays at its end");
    int more = 0;
    while (more < 10000 && serve_shared_begin(shared, 1, &wide) >= 0)
        more++;
    CHECK(more < 10000 && serve_shared_find(shared, 3, &wide, &begun) == w,
          "so do items; published plans stay");
    serve_shared_free(shared);
    CHECK(!serve_shared_find(NULL, 3, &wide, &begun) && !begun &&
              serve_shared_begin(NULL, 3, &wide) == -1,
          "without shared memory nothing is shared");
    return tap_done();
}
