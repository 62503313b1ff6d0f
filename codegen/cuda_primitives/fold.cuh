//@ exchange : the value of the lane whose index differs by the mask.
template <class T> DEV T exchange(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }

//@ group_sum : the sum over groups of W lanes, the same in every lane of a group.
template <int W, class T> DEV T group_sum(T v) {
  UNROLL for (int m = W / 2; m; m /= 2) v += exchange(v, m);
  return v;
}

//@ group_prod : the product over groups of W lanes.
template <int W, class T> DEV T group_prod(T v) {
  UNROLL for (int m = W / 2; m; m /= 2) v = times(v, exchange(v, m));
  return v;
}

//@ group_max : the maximum over groups of W lanes; NaN is passed on.
template <int W, class T> DEV T group_max(T v) {
  UNROLL for (int m = W / 2; m; m /= 2) v = maximum(v, exchange(v, m));
  return v;
}

//@ group_min : the minimum over groups of W lanes; NaN is passed on.
template <int W, class T> DEV T group_min(T v) {
  UNROLL for (int m = W / 2; m; m /= 2) v = minimum(v, exchange(v, m));
  return v;
}

//@ ahead : candidate (v, at) comes before (b, b_at): NaN, then the best, then the first; a place at -1 is free.
template <int SIGN, class T> DEV bool ahead(T v, T at, T b, T b_at) {
  if (at < 0 || b_at < 0) return at >= 0;
  const bool nan = v != v, other = b != b;
  if (nan || other) return nan && (!other || at < b_at);
  return SIGN > 0 ? v > b || (v == b && at < b_at) : v < b || (v == b && at < b_at);
}

//@ group_best : the best candidate over groups of W lanes.
template <int W, int SIGN, class T> DEV void group_best(T &v, T &at) {
  UNROLL for (int m = W / 2; m; m /= 2) {
    const T b = exchange(v, m), b_at = exchange(at, m);
    if (ahead<SIGN>(b, b_at, v, at)) v = b, at = b_at;
  }
}

//@ insert : a candidate into a list of the K best, best first.
template <int K, int SIGN, class T> DEV void insert(T *best, T *place, T v, T at) {
  if (!ahead<SIGN>(v, at, best[K - 1], place[K - 1])) return;
  UNROLL for (int t = 0; t < K; t++) {
    const bool swap = ahead<SIGN>(v, at, best[t], place[t]);
    const T b = best[t], b_at = place[t];
    best[t] = swap ? v : b, place[t] = swap ? at : b_at;
    v = swap ? b : v, at = swap ? b_at : at;
  }
}

//@ group_list : the K best of the lists of groups of W lanes.
template <int W, int K, int SIGN, class T> DEV void group_list(T *best, T *place) {
  UNROLL for (int m = W / 2; m; m /= 2) {
    T b[K], b_at[K];
    UNROLL for (int t = 0; t < K; t++) b[t] = exchange(best[t], m), b_at[t] = exchange(place[t], m);
    UNROLL for (int t = 0; t < K; t++) insert<K, SIGN>(best, place, b[t], b_at[t]);
  }
}
