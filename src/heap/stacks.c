/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks in memory of the heap.  A child would run on its parent's until it has a copy: so memory that becomes a stack is no
 * part of the file any more.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <ucontext.h>

#include "heap.h"
#include "libc/next.h"

#define MOST 16 /* arguments of a context's function */

EXPORT int pthread_attr_setstack(pthread_attr_t *attr, void *at, size_t bytes) {
    heap_leave_file(at);
    return NEXT(pthread_attr_setstack)(attr, at, bytes);
}

#ifdef __GLIBC__
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* pthread_attr_setstackaddr(), which old programs call, takes the end of the stack. */
EXPORT int pthread_attr_setstackaddr(pthread_attr_t *attr, void *end) {
    heap_leave_file((const uint8_t *)end - 1);
    return NEXT(pthread_attr_setstackaddr)(attr, end);
}
#endif

EXPORT int sigaltstack(const stack_t *stack, stack_t *old) {
    if (stack && !(stack->ss_flags & SS_DISABLE))
        heap_leave_file(stack->ss_sp);
    return NEXT(sigaltstack)(stack, old);
}

/* Programs pass pointers, too. */
EXPORT void makecontext(ucontext_t *context, void (*function)(void), int count, ...) {
    long a[MOST] = {0};
    va_list list;
    if (count > MOST)
        abort();
    va_start(list, count);
    for (int i = 0; i < count; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    heap_leave_file(context->uc_stack.ss_sp);
    NEXT(makecontext)(context, function, count, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                      a[11], a[12], a[13], a[14], a[15]);
}
