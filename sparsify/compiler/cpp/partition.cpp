// Steps of a multilevel graph partitioner: label propagation, greedy growing, refinement after Fiduccia and Mattheyses.
//
// In: rows of a symmetric adjacency in CSR, the part of each node, the size of each part and its limit. Out: the parts
// after one sweep or pass. Self loops and equal neighbours are allowed. The memory is the caller's.

typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

// Rows first to first + rows of a graph of `nodes` nodes; without weights every edge and node counts 1.
struct Graph {
  int64_t first, rows, nodes, parts, patience, seed;
  const int64_t *pos;          // [rows + 1], from 0
  const int32_t *crd;          // [pos[rows]]
  const int64_t *edge_weight;  // [pos[rows]] or nothing
  const int64_t *node_weight;  // [nodes] or nothing
  int32_t *part;               // [nodes]
  int64_t *size;               // [parts]
  const int64_t *limit;        // [parts], or one number where limit_step is 0
  int64_t limit_step;
  int64_t *score;              // [parts], 0 before and after
  int32_t *touched;            // [parts]
  int64_t *gain;               // [nodes], of refine and grow
  int32_t *heap, *place, *target, *moved, *source;  // [nodes] each, of refine and grow
};

static inline int64_t weight_of(const Graph &g, int64_t v) { return g.node_weight ? g.node_weight[v] : 1; }
static inline int64_t limit_of(const Graph &g, int64_t p) { return g.limit[p * g.limit_step]; }

// Edge weights of row v by part in `score`, its parts in `touched`; how many parts there are.
static int64_t count_parts(const Graph &g, int64_t v) {
  int64_t touched = 0;
  for (int64_t e = g.pos[v - g.first]; e < g.pos[v - g.first + 1]; e++) {
    const int64_t u = g.crd[e];
    if (u == v) continue;
    const int32_t p = g.part[u];
    if (g.score[p] == 0) g.touched[touched++] = p;
    g.score[p] += g.edge_weight ? g.edge_weight[e] : 1;
  }
  return touched;
}

static inline void clear_parts(const Graph &g, int64_t touched) {
  for (int64_t t = 0; t < touched; t++) g.score[g.touched[t]] = 0;
}

// One sweep of size-constrained label propagation over the rows; how many nodes changed their part.
extern "C" int64_t sparsify_propagate(const Graph *graph) {
  const Graph &g = *graph;
  int64_t moves = 0;
  uint64_t random = (uint64_t)g.seed * 2 + 1;
  for (int64_t v = g.first; v < g.first + g.rows; v++) {
    const int64_t touched = count_parts(g, v), weight = weight_of(g, v);
    const int32_t own = g.part[v];
    const bool is_over = g.size[own] > limit_of(g, own);
    int64_t best_score = is_over ? -1 : g.score[own], best_size = g.size[own] - weight, ties = 1;
    int32_t best = own;
    for (int64_t t = 0; t < touched; t++) {
      const int32_t p = g.touched[t];
      if (p == own || g.size[p] + weight > limit_of(g, p) || g.score[p] < best_score) continue;
      if (g.score[p] == best_score) {
        if (g.limit_step == 0) {  // clusters: any of them, with equal chances
          random = random * 6364136223846793005u + 1442695040888963407u;
          if ((random >> 33) % (uint64_t)++ties) continue;
        } else if (g.size[p] >= best_size) {
          continue;
        }
      } else {
        ties = 1;
      }
      best = p, best_score = g.score[p], best_size = g.size[p];
    }
    clear_parts(g, touched);
    if (best == own) continue;
    g.part[v] = best, g.size[own] -= weight, g.size[best] += weight, moves++;
  }
  return moves;
}

// A heap of nodes, the greatest gain first; `place` is the slot of each node, -1 outside.
static void lift(const Graph &g, int64_t slot, int32_t v) {
  while (slot > 0) {
    const int64_t above = (slot - 1) / 2;
    if (g.gain[g.heap[above]] >= g.gain[v]) break;
    g.heap[slot] = g.heap[above], g.place[g.heap[slot]] = (int32_t)slot, slot = above;
  }
  g.heap[slot] = v, g.place[v] = (int32_t)slot;
}

static void sink(const Graph &g, int64_t count, int64_t slot, int32_t v) {
  for (int64_t below; (below = 2 * slot + 1) < count; slot = below) {
    if (below + 1 < count && g.gain[g.heap[below + 1]] > g.gain[g.heap[below]]) below++;
    if (g.gain[g.heap[below]] <= g.gain[v]) break;
    g.heap[slot] = g.heap[below], g.place[g.heap[slot]] = (int32_t)slot;
  }
  g.heap[slot] = v, g.place[v] = (int32_t)slot;
}

static void remove_slot(const Graph &g, int64_t &count, int64_t slot) {
  const int32_t last = g.heap[--count];
  g.place[g.heap[slot]] = -1;
  if (slot == count) return;
  lift(g, slot, last);
  sink(g, count, g.place[last], last);
}

static void set_gain(const Graph &g, int64_t &count, int32_t v, int64_t gain) {
  g.gain[v] = gain;
  if (g.place[v] < 0) {
    lift(g, count++, v);
  } else {
    lift(g, g.place[v], v);
    sink(g, count, g.place[v], v);
  }
}

// The best part that has room for v, with the gain in `gain`; -1 where v has no neighbour in such a part.
static int32_t best_move(const Graph &g, int64_t v, int64_t &gain) {
  const int64_t touched = count_parts(g, v), weight = weight_of(g, v);
  const int32_t own = g.part[v];
  int32_t best = -1;
  for (int64_t t = 0; t < touched; t++) {
    const int32_t p = g.touched[t];
    if (p == own || g.size[p] + weight > limit_of(g, p)) continue;
    if (best < 0 || g.score[p] > g.score[best] || (g.score[p] == g.score[best] && g.size[p] < g.size[best]))
      best = p;
  }
  if (best >= 0) gain = g.score[best] - g.score[own];
  clear_parts(g, touched);
  return best;
}

// One pass of k-way refinement: each node moves once, moves behind the best cut are undone; by how much the cut fell.
extern "C" int64_t sparsify_refine(const Graph *graph) {
  const Graph &g = *graph;
  int64_t count = 0, moves = 0, best_moves = 0, total = 0, best_total = 0, work = 0;
  const int64_t most_work = 12 * g.pos[g.rows] + 1024;
  for (int64_t v = 0; v < g.nodes; v++) g.place[v] = -1, g.source[v] = -1;
  for (int64_t v = 0; v < g.nodes; v++) {
    int64_t gain;
    if ((g.target[v] = best_move(g, v, gain)) >= 0) set_gain(g, count, (int32_t)v, gain);
  }
  while (count > 0 && moves - best_moves < g.patience && work < most_work) {
    const int32_t v = g.heap[0];
    int64_t gain = 0;
    const int32_t to = best_move(g, v, gain);
    work += g.pos[v + 1] - g.pos[v];
    if (to < 0) { remove_slot(g, count, 0); continue; }
    if (gain < g.gain[v]) { set_gain(g, count, v, gain); if (g.heap[0] != v) continue; }
    remove_slot(g, count, 0);
    const int64_t weight = weight_of(g, v);
    g.source[v] = g.part[v], g.moved[moves++] = v;
    g.size[g.part[v]] -= weight, g.size[to] += weight, g.part[v] = to, total += gain;
    if (total > best_total) best_total = total, best_moves = moves;
    for (int64_t e = g.pos[v]; e < g.pos[v + 1]; e++) {
      const int32_t u = g.crd[e];
      if (g.source[u] >= 0 || u == v) continue;
      int64_t next;
      work += g.pos[u + 1] - g.pos[u];
      if (best_move(g, u, next) >= 0) set_gain(g, count, u, next);
      else if (g.place[u] >= 0) remove_slot(g, count, g.place[u]);
    }
  }
  while (moves > best_moves) {
    const int32_t v = g.moved[--moves];
    const int64_t weight = weight_of(g, v);
    g.size[g.part[v]] -= weight, g.part[v] = g.source[v], g.size[g.part[v]] += weight;
  }
  return best_total;
}

// Grows part 0 from the node `seed` until it has `patience`, all nodes being in part 1 before.
extern "C" int64_t sparsify_grow(const Graph *graph) {
  const Graph &g = *graph;
  int64_t count = 0, grown = 0, next = g.seed % g.nodes;
  for (int64_t v = 0; v < g.nodes; v++) {
    g.place[v] = -1, g.gain[v] = 0;
    for (int64_t e = g.pos[v]; e < g.pos[v + 1]; e++) g.gain[v] -= g.edge_weight ? g.edge_weight[e] : 1;
  }
  for (int64_t left = g.nodes; left > 0 && grown < g.patience; left--) {
    int32_t v;
    if (count > 0) {
      v = g.heap[0];
      remove_slot(g, count, 0);
    } else {
      while (g.part[next] == 0) next = next + 1 < g.nodes ? next + 1 : 0;
      v = (int32_t)next;
    }
    const int64_t weight = weight_of(g, v);
    g.part[v] = 0, g.size[1] -= weight, g.size[0] += weight, grown += weight;
    for (int64_t e = g.pos[v]; e < g.pos[v + 1]; e++) {
      const int32_t u = g.crd[e];
      if (g.part[u] != 0) set_gain(g, count, u, g.gain[u] + 2 * (g.edge_weight ? g.edge_weight[e] : 1));
    }
  }
  return grown;
}
