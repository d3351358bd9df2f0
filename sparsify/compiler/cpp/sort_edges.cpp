// From the coordinates of edges to the arrays of a matrix in CSR, and from CSR to CSC: counting sorts.
//
// In: rows [1, 0, 1] and columns [0, 2, 0]. Out: pos [0, 1, 2], crd [2, 0] and the slots [1, 0, 1] of the edges.
//
// Threads take consecutive parts of the edges and count the rows of their own part, so edges of a row keep their order.
// Short rows are sorted without a branch that depends on their columns: the place of an edge is the number of columns
// of its row that are less. The memory is the caller's, and nothing is read but what is declared here.

typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef int32_t Lanes __attribute__((vector_size(32)));
typedef int64_t Keys __attribute__((vector_size(64), aligned(8)));  // lanes that begin at any key

enum { LANES = 8, SHORT = 8 * LANES };
enum { OUTSIDE = -1, ASCENDING = 0, ORDERED = 1, MERGED = 2 };

// Edges (row, column) of a matrix of height times width, and the arrays that they become.
//
// Edges at the same place share a slot, unless they are numbered: then each has its own, in the order of its row.
struct Edges {
  const int64_t *rows, *columns;
  int64_t count, height, width, threads, is_numbered;
  int32_t *pos, *crd;      // [height + 1], [count]
  int64_t *places;         // [count]: the edge of each slot; where edges are merged, the first one of each, and behind
                           // them all others; or nothing
  int64_t *keys, *spare;   // [count], [count]; in the end `spare` has of merged edges without places how many each slot
                           // has, int32; of those with places the slots of `others`, from [(stored + 1) / 2] on
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

// Adds to the rank of each lane whether the column of another key is less, or, of TIED columns, equal and before it.
template <int64_t VECTORS, bool TIED> static void rank(const Lanes *given, const int64_t *keys, int64_t count, Lanes *ranks) {
  const Lanes numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t other = 0; other < count; other++) {
    int32_t column = (int32_t)(keys[other] >> 32);
    for (int64_t vector = 0; vector < VECTORS; vector++) {
      Lanes is_before = column < given[vector];
      if (TIED) is_before |= (column == given[vector]) & ((int32_t)other < numbers + (int32_t)vector * LANES);
      ranks[vector] -= is_before;
    }
  }
}

// The places of keys in the order of their columns, those of one column in their order; whether all columns differ.
// There are at most SHORT; what is read behind them, to fill lanes, is not used.
template <int64_t VECTORS> static bool find_places(const int64_t *keys, int64_t count, int32_t *places) {
  Lanes given[VECTORS], ranks[VECTORS];
  for (int64_t vector = 0; vector < VECTORS; vector++) {
    given[vector] = __builtin_convertvector(*(const Keys *)(keys + vector * LANES) >> 32, Lanes);
    ranks[vector] = Lanes{};
  }
  rank<VECTORS, false>(given, keys, count, ranks);
  __builtin_memcpy(places, ranks, sizeof(ranks));
  int64_t sum = 0;
  for (int64_t number = 0; number < count; number++) sum += places[number];
  // Equal columns count each other not at all, so only ranks of different ones are 0, 1, 2 ...
  if (sum == count * (count - 1) / 2) return true;
  for (int64_t vector = 0; vector < VECTORS; vector++) ranks[vector] = Lanes{};
  rank<VECTORS, true>(given, keys, count, ranks);
  __builtin_memcpy(places, ranks, sizeof(ranks));
  return false;
}

static bool find_places(const int64_t *keys, int64_t count, int32_t *places) {
  switch ((count + LANES - 1) / LANES) {
    case 0:
    case 1: return find_places<1>(keys, count, places);
    case 2: return find_places<2>(keys, count, places);
    case 3: return find_places<3>(keys, count, places);
    case 4: return find_places<4>(keys, count, places);
    case 5: return find_places<5>(keys, count, places);
    case 6: return find_places<6>(keys, count, places);
    case 7: return find_places<7>(keys, count, places);
    default: return find_places<8>(keys, count, places);
  }
}

static void sort_short(int64_t *keys, int64_t count) {
  int32_t places[SHORT];
  int64_t given[SHORT];
  find_places(keys, count, places);
  __builtin_memcpy(given, keys, (uint64_t)count * sizeof(int64_t));
  for (int64_t number = 0; number < count; number++) keys[places[number]] = given[number];
}

static void merge(const int64_t *keys, int64_t middle, int64_t count, int64_t *merged) {
  for (int64_t first = 0, second = middle, place = 0; place < count; place++) {
    bool is_first = first < middle && (second == count || keys[first] < keys[second]);
    merged[place] = keys[is_first ? first++ : second++];
  }
}

// Sorts the keys of a long row by merging; `spare` has as many places.
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

// Writes the edge of a key into a slot.
static void fill_slot(const Edges &edges, int64_t slot, int64_t key) {
  edges.crd[slot] = (int32_t)(key >> 32);
  if (edges.places) edges.places[slot] = key & 0xffffffff;
}

// Sorts the edges of a row by column and then by number, and fills crd and places as if each had a slot of its own; the
// number of different columns.
static int32_t sort_row(const Edges &edges, int64_t begin, int64_t end) {
  int64_t count = end - begin;
  int64_t *keys = edges.keys + begin;
  if (edges.is_numbered || count < 2) {
    for (int64_t number = 0; number < count; number++) fill_slot(edges, begin + number, keys[number]);
    return (int32_t)count;
  }
  if (count <= SHORT) {
    int32_t places[SHORT];
    bool all_differ = find_places(keys, count, places);
    for (int64_t number = 0; number < count; number++) fill_slot(edges, begin + places[number], keys[number]);
    if (all_differ) return (int32_t)count;
  } else {
    sort_keys(keys, count, edges.spare + begin);
    for (int64_t number = 0; number < count; number++) fill_slot(edges, begin + number, keys[number]);
  }
  int32_t columns = 1;
  for (int64_t slot = begin + 1; slot < end; slot++) columns += edges.crd[slot] != edges.crd[slot - 1];
  return columns;
}

// Sorts the edges of some rows, and counts the columns of each; how many there are in all rows.
static int64_t sort_rows(const Edges &edges, int64_t first, int64_t last) {
  int64_t different = 0;
  for (int64_t row = first; row < last; row++)
    different += edges.counts[row] = sort_row(edges, edges.pos[row], edges.pos[row + 1]);
  return different;
}

// Gives the edges of some rows that lie at the same place one slot. The slots lie where the first of these rows began
// before; rows begin at their new places in `begins`.
static void merge_rows(const Edges &edges, const int32_t *begins, int64_t first, int64_t last) {
  int32_t *joined = (int32_t *)edges.spare;
  int64_t *shared = edges.spare + (edges.stored + 1) / 2, *others = edges.keys;
  int64_t behind = first < last ? edges.pos[first] - begins[first] : 0;
  for (int64_t row = first; row < last; row++) {
    int64_t slot = (int64_t)begins[row] - 1, other = edges.pos[row] - begins[row];
    int32_t before = -1;
    for (int64_t place = edges.pos[row]; place < edges.pos[row + 1]; place++) {
      int32_t column = edges.crd[place];
      if (column != before) {
        slot++;
        edges.crd[behind + slot] = before = column;
        if (edges.places) edges.places[behind + slot] = edges.places[place];
        else joined[slot] = 1;
      } else if (edges.places) {
        others[other] = edges.places[place];
        shared[other++] = slot;
      } else joined[slot]++;
    }
  }
}

// Moves the slots of each thread to where those of the one before end, and all but the first edges of slots behind them.
static void close_gaps(const Edges &edges, const int32_t *begins) {
  for (int64_t thread = 1; thread < edges.threads; thread++) {
    int64_t first = first_row(edges.pos, edges.height, thread, edges.threads);
    int64_t last = first_row(edges.pos, edges.height, thread + 1, edges.threads);
    if (first == last) continue;
    int64_t from = edges.pos[first], to = begins[first];
    uint64_t slots = (uint64_t)((last < edges.height ? begins[last] : edges.stored) - to);
    __builtin_memmove(edges.crd + to, edges.crd + from, slots * sizeof(int32_t));
    if (edges.places) __builtin_memmove(edges.places + to, edges.places + from, slots * sizeof(int64_t));
  }
  if (!edges.places) return;
  uint64_t others = (uint64_t)(edges.count - edges.stored);
  __builtin_memcpy(edges.places + edges.stored, edges.keys, others * sizeof(int64_t));
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
  close_gaps(edges, edges.counts);
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
