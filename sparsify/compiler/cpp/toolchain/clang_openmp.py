"""Bridge from clang's parallel regions to the OpenMP runtime of GCC.

In: a unit compiled by clang with `-fopenmp`, with calls of `__kmpc_fork_call`. Out: the C++ text of this
function on top of `GOMP_parallel`, linked with the unit.

Torch usually brings libgomp, without support for clang's calls; clang's own runtime would be a
second pool of threads. The runtimes of LLVM and Intel offer both sets of calls and need no bridge.

Source: the interface of LLVM's OpenMP runtime, openmp/runtime/src/kmp_csupport.cpp.
"""

from typing import Final

MOST_ARGUMENTS: Final = 64
_ARGUMENTS = ", ".join(f"a[{number}]" for number in range(MOST_ARGUMENTS))
_TYPES = ", ".join(["void *"] * MOST_ARGUMENTS)

SOURCE: Final = f"""\
#define HIDDEN extern "C" __attribute__((visibility("hidden")))
extern "C" int omp_get_thread_num() noexcept;
extern "C" void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);

struct Fork {{
  void (*body)(int *thread, int *bound, {_TYPES});
  void *arguments[{MOST_ARGUMENTS}];
}};

static thread_local int threads_asked = 0;

static void run(void *data) {{
  const Fork *fork = (const Fork *)data;
  void *const *a = fork->arguments;
  int thread = omp_get_thread_num(), bound = 0;
  // A body takes fewer arguments; the rest stay where the caller put them and are not read.
  fork->body(&thread, &bound, {_ARGUMENTS});
}}

HIDDEN int __kmpc_global_thread_num(void *) {{ return omp_get_thread_num(); }}

HIDDEN void __kmpc_push_num_threads(void *, int, int threads) {{ threads_asked = threads; }}

HIDDEN void __kmpc_fork_call(void *, int count, void *body, ...) {{
  if (count > {MOST_ARGUMENTS}) __builtin_trap();
  Fork fork = {{(decltype(Fork::body))body, {{}}}};
  __builtin_va_list list;
  __builtin_va_start(list, body);
  for (int i = 0; i < count; i++) fork.arguments[i] = __builtin_va_arg(list, void *);
  __builtin_va_end(list);
  const int threads = threads_asked;
  threads_asked = 0;
  GOMP_parallel(run, &fork, threads, 0);
}}
"""
