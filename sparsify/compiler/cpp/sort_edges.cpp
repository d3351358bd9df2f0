// From the coordinates of edges to the arrays of a matrix in CSR, and from CSR to CSC: counting sorts.
//
// In: rows [1, 0, 1] and columns [0, 2, 0]. Out: pos [0, 1, 2], crd [2, 0] and the slots [1, 0, 1] of the edges.
//
// Threads take consecutive parts of the edges and count the rows of their own part, so edges of a row keep their order.
// Short rows are sorted without a branch that depends on their columns: each key is put behind as many as are less. The
// memory is the caller's, and nothing is read but what is declared here.

typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef int64_t Lanes __attribute__((vector_size(64)));
typedef int64_t Keys __attribute__((vector_size(64), aligned(8)));  // lanes that begin at any key

enum { LANES = 8, SHORT = 4 * LANES };
enum { OUTSIDE = -1, ASCENDING = 0, ORDERED = 1, MERGED = 2 };

// Edges (row, column) of a matrix of height times width, and the arrays that they become.
//
// Edges at the same place share a slot, unless they are numbered: then each has its own, in the order of its row.
struct Edges {
  const int64_t *rows, *columns;
  int64_t count, height, width, threads, is_numbered;
  int32_t *pos, *crd;      // [height + 1], [count]
  int64_t *places;         // [count]: of each slot its edge; where edges are merged, of each edge its slot; or nothing
  int64_t *keys, *spare;   // [count], [count]; in the end `spare` has of merged edges how many each slot has, int32
  int32_t *counts;         // [threads, height]
  int64_t stored, longest; // how many slots there are, and how many the longest row has; the wrong edge is `stored`
};

// Counts the rows of a part of the edges; the first one outside of the matrix, or the end of the part.
static int64_t count_rows(const Edges &edges, int64_t first, int64_t last, int32_t *counts, bool &ascends) {
  const uint64_t height = (uint64_t)edges.height, width = (uint64_t)edges.width;
  int64_t row_before = first ? edges.rows[first - 1] : -1, column_before = first ? edges.columns[first - 1] : -1;
  bool is_after = true;
  for (int64_t edge = first; edge < last; edge++) {
    int64_t row = edges.rows[edge], column = edges.columns[edge];
    if ((uint64_t)row >= height || (uint64_t)column >= width) return edge;
    counts[row]++;
    is_after &= row > row_before || (row == row_before && (edges.is_numbered || column > column_before));
    row_before = row;
    column_before = column;
  }
  ascends = is_after;
  return last;
}

// Turns the counts of each thread into where its part of each row begins, and fills pos.
static void begin_rows(Edges &edges) {
  int32_t next = 0;
  int64_t longest = 0;
  for (int64_t row = 0; row < edges.height; row++) {
    int32_t begin = next;
    edges.pos[row] = begin;
    for (int64_t thread = 0; thread < edges.threads; thread++) {
      int32_t &own = edges.counts[thread * edges.height + row], count = own;
      own = next;
      next += count;
    }
    if (next - begin > longest) longest = next - begin;
  }
  edges.pos[edges.height] = next;
  edges.longest = longest;
}

// The first row of the part of a thread: the first one that begins at its first place or behind it.
static int64_t first_row(const int32_t *pos, int64_t height, int64_t thread, int64_t threads) {
  if (thread == threads) return height;
  int64_t low = 0, high = height, place = pos[height] * thread / threads;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (pos[middle] < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Puts keys, all different, in order. There are at most SHORT; what is read behind them, to fill lanes, is not used.
template <int64_t VECTORS> static void sort_by_rank(int64_t *keys, int64_t count) {
  Lanes given[VECTORS], ranks[VECTORS];
  for (int64_t number = 0; number < VECTORS; number++) {
    given[number] = *(const Keys *)(keys + number * LANES);
    ranks[number] = Lanes{};
  }
  for (int64_t other = 0; other < count; other++) {
    int64_t key = keys[other];
    for (int64_t number = 0; number < VECTORS; number++) ranks[number] -= key < given[number];
  }
  const int64_t *from = (const int64_t *)given, *to = (const int64_t *)ranks;
  for (int64_t place = 0; place < count; place++) keys[to[place]] = from[place];
}

static void sort_short(int64_t *keys, int64_t count) {
  if (count < 2) return;
  if (count <= LANES) sort_by_rank<1>(keys, count);
  else if (count <= 2 * LANES) sort_by_rank<2>(keys, count);
  else sort_by_rank<4>(keys, count);
}

static void merge(const int64_t *keys, int64_t middle, int64_t count, int64_t *merged) {
  for (int64_t first = 0, second = middle, place = 0; place < count; place++) {
    bool is_first = first < middle && (second == count || keys[first] < keys[second]);
    merged[place] = keys[is_first ? first++ : second++];
  }
}

// Sorts keys, those of long rows by merging; `spare` has as many places.
static void sort_keys(int64_t *keys, int64_t count, int64_t *spare) {
  int64_t *from = keys, *to = spare;
  for (int64_t begin = 0; begin < count; begin += SHORT)
    sort_short(keys + begin, count - begin < SHORT ? count - begin : (int64_t)SHORT);
  for (int64_t length = SHORT; length < count; length *= 2) {
    for (int64_t begin = 0; begin < count; begin += 2 * length) {
      int64_t rest = count - begin;
      merge(from + begin, rest < length ? rest : length, rest < 2 * length ? rest : 2 * length, to + begin);
    }
    int64_t *other = from;
    from = to;
    to = other;
  }
  for (int64_t place = 0; from != keys && place < count; place++) keys[place] = from[place];
}

// Sorts the edges of some rows by column and then by number, fills crd and places as if each had a slot of its own, and
// counts the columns of each row; how many there are in all rows.
static int64_t sort_rows(const Edges &edges, int64_t first, int64_t last) {
  int64_t different = 0;
  for (int64_t row = first; row < last; row++) {
    int64_t begin = edges.pos[row], end = edges.pos[row + 1];
    if (!edges.is_numbered) sort_keys(edges.keys + begin, end - begin, edges.spare + begin);
    int32_t columns = 0, before = -1;
    for (int64_t slot = begin; slot < end; slot++) {
      int32_t column = (int32_t)(edges.keys[slot] >> 32);
      columns += edges.is_numbered || column != before;
      edges.crd[slot] = before = column;
      if (edges.places) edges.places[slot] = edges.keys[slot] & 0xffffffff;
    }
    edges.counts[row] = columns;
    different += columns;
  }
  return different;
}

// Gives the edges of some rows that lie at the same place one slot; the rows begin at their new places in `begins`.
static void merge_rows(const Edges &edges, const int32_t *begins, int64_t first, int64_t last) {
  int32_t *joined = (int32_t *)edges.spare;
  for (int64_t row = first; row < last; row++) {
    int64_t slot = (int64_t)begins[row] - 1;
    int32_t before = -1;
    for (int64_t place = edges.pos[row]; place < edges.pos[row + 1]; place++) {
      int32_t column = (int32_t)(edges.keys[place] >> 32);
      if (column != before) {
        edges.crd[++slot] = before = column;
        joined[slot] = 0;
      }
      joined[slot]++;
      if (edges.places) edges.places[edges.keys[place] & 0xffffffff] = slot;
    }
  }
}

// Sorts edges into CSR; whether they came ascending, were put in order, or merged, or one lies outside of the matrix.
extern "C" int64_t sparsify_sort_edges(Edges *given) {
  Edges &edges = *given;
  const int64_t threads = edges.threads, count = edges.count;
  int64_t outside = count;
  bool ascends = true;
#pragma omp parallel for num_threads((int)threads) schedule(static, 1) reduction(min : outside) reduction(&& : ascends)
  for (int64_t thread = 0; thread < threads; thread++) {
    int64_t first = count * thread / threads, last = count * (thread + 1) / threads;
    bool is_after = true;
    __builtin_memset(edges.counts + thread * edges.height, 0, (uint64_t)edges.height * sizeof(int32_t));
    int64_t end = count_rows(edges, first, last, edges.counts + thread * edges.height, is_after);
    if (end < last && end < outside) outside = end;
    ascends = ascends && is_after;
  }
  edges.stored = outside;
  if (outside < count) return OUTSIDE;
  begin_rows(edges);
  if (ascends) {
#pragma omp parallel for num_threads((int)threads)
    for (int64_t edge = 0; edge < count; edge++) edges.crd[edge] = (int32_t)edges.columns[edge];
    return ASCENDING;
  }
  int64_t different = 0;
#pragma omp parallel num_threads((int)threads) reduction(+ : different)
  {
#pragma omp for schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) {
      int32_t *next = edges.counts + thread * edges.height;
      for (int64_t edge = count * thread / threads; edge < count * (thread + 1) / threads; edge++)
        edges.keys[next[edges.rows[edge]]++] = edges.columns[edge] << 32 | edge;
    }
#pragma omp for schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++)
      different += sort_rows(edges, first_row(edges.pos, edges.height, thread, threads),
                             first_row(edges.pos, edges.height, thread + 1, threads));
  }
  edges.stored = different;
  if (different == count) return ORDERED;
  // Where rows begin now; the counts become it.
  int32_t next = 0;
  edges.longest = 0;
  for (int64_t row = 0; row < edges.height; row++) {
    int32_t columns = edges.counts[row];
    edges.counts[row] = next;
    next += columns;
    if (columns > edges.longest) edges.longest = columns;
  }
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; thread++)
    merge_rows(edges, edges.counts, first_row(edges.pos, edges.height, thread, threads),
               first_row(edges.pos, edges.height, thread + 1, threads));
  for (int64_t row = 0; row < edges.height; row++) edges.pos[row] = edges.counts[row];
  edges.pos[edges.height] = next;
  return MERGED;
}

// A matrix of height times width in CSR, and the arrays of the same in CSC.
struct Matrix {
  const int32_t *pos, *crd;
  int64_t height, width, threads;
  int32_t *turned_pos, *turned_crd;  // [width + 1], [stored]
  int64_t *places;                   // [stored]: where each entry in CSC lies in CSR
  int32_t *counts;                   // [threads, width]
};

// Turns a matrix from CSR to CSC.
extern "C" void sparsify_turn(const Matrix *given) {
  const Matrix &matrix = *given;
  const int64_t threads = matrix.threads;
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; thread++) {
    int64_t first = matrix.pos[first_row(matrix.pos, matrix.height, thread, threads)];
    int64_t last = matrix.pos[first_row(matrix.pos, matrix.height, thread + 1, threads)];
    int32_t *counts = matrix.counts + thread * matrix.width;
    __builtin_memset(counts, 0, (uint64_t)matrix.width * sizeof(int32_t));
    for (int64_t place = first; place < last; place++) counts[matrix.crd[place]]++;
  }
  int32_t next = 0;
  for (int64_t column = 0; column < matrix.width; column++) {
    matrix.turned_pos[column] = next;
    for (int64_t thread = 0; thread < threads; thread++) {
      int32_t &own = matrix.counts[thread * matrix.width + column], count = own;
      own = next;
      next += count;
    }
  }
  matrix.turned_pos[matrix.width] = next;
#pragma omp parallel for num_threads((int)threads) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; thread++) {
    int64_t first = first_row(matrix.pos, matrix.height, thread, threads);
    int64_t last = first_row(matrix.pos, matrix.height, thread + 1, threads);
    int32_t *places = matrix.counts + thread * matrix.width;
    for (int64_t row = first; row < last; row++) {
      for (int64_t place = matrix.pos[row]; place < matrix.pos[row + 1]; place++) {
        int32_t turned = places[matrix.crd[place]]++;
        matrix.turned_crd[turned] = (int32_t)row;
        matrix.places[turned] = place;
      }
    }
  }
}
