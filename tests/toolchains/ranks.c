/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.c: what processes of MPI send each other, verified: sums over all of them, of 4 bytes to 1 MiB, and access to each
 * other's memory.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 1 << 18, FLAG = 0, SUM = 1, WINDOW = 4096 };

static int rank, size;

static int sums(int *in, int *out) {
    int wrong = 0;
    for (int n = 1; n <= MOST; n *= 4) {
        for (int i = 0; i < n; i++)
            in[i] = i * (rank + 1);
        MPI_Allreduce(in, out, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++)
            wrong += out[i] != i * (size * (size + 1) / 2);
    }
    return wrong;
}

static int memory(void) {
    int *words, one = 1, wrong;
    MPI_Win window;
    MPI_Win_allocate(WINDOW, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
    words[FLAG] = -1;
    words[SUM] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(0, window);
    MPI_Put(&rank, 1, MPI_INT, (rank + 1) % size, FLAG, 1, MPI_INT, window);
    MPI_Accumulate(&one, 1, MPI_INT, 0, SUM, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    wrong = words[FLAG] != (rank + size - 1) % size || (rank == 0 && words[SUM] != size);
    MPI_Win_free(&window);
    return wrong;
}

int main(int argc, char **argv) {
    int *in = malloc(MOST * sizeof *in), *out = malloc(MOST * sizeof *out), wrong;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    wrong = sums(in, out) + memory();
    puts(wrong ? "wrong" : "all is well");
    MPI_Finalize();
    free(in);
    free(out);
    return wrong != 0;
}
