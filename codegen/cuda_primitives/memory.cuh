//@ load128 : 16 bytes of global memory through the read-only path.
// volatile: else the compiler may hoist the load over the test that the address is valid, and run it whatever the test says
DEV uint4 load128(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

//@ load128_once : 16 bytes that nobody reads again: not kept in L1.
DEV uint4 load128_once(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

//@ store128 : 16 bytes to global memory.
DEV void store128(void *p, uint4 v) { *(uint4 *)p = v; }

//@ spread_f32 : the 4 floats in 16 bytes.
DEV void spread_f32(float *d, uint4 v) {
  d[0] = __uint_as_float(v.x), d[1] = __uint_as_float(v.y), d[2] = __uint_as_float(v.z), d[3] = __uint_as_float(v.w);
}

//@ spread_bf16 : the 8 bfloat16 in 16 bytes as floats.
DEV void spread_bf16(float *d, uint4 v) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  UNROLL for (int i = 0; i < 4; i++) {
    d[2 * i] = __uint_as_float(w[i] << 16);
    d[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}

//@ spread_f16 : the 8 float16 in 16 bytes as floats.
DEV void spread_f16(float *d, uint4 v) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  UNROLL for (int i = 0; i < 8; i++) d[i] = from_f16((u16)(w[i / 2] >> 16 * (i % 2)));
}

//@ spread_e4m3 : the 16 e4m3 in 16 bytes as floats.
DEV void spread_e4m3(float *d, uint4 v) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  UNROLL for (int i = 0; i < 16; i++) d[i] = from_e4m3((u8)(w[i / 4] >> 8 * (i % 4)));
}

//@ gather_f32 : 4 floats as 16 bytes.
DEV uint4 gather_f32(const float *s) {
  return make_uint4(__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]), __float_as_uint(s[3]));
}

//@ gather_bf16 : 8 floats as bfloat16 in 16 bytes.
DEV uint4 gather_bf16(const float *s) {
  return make_uint4(pack_bf16(s[0], s[1]), pack_bf16(s[2], s[3]), pack_bf16(s[4], s[5]), pack_bf16(s[6], s[7]));
}

//@ gather_f16 : 8 floats as float16 in 16 bytes.
DEV uint4 gather_f16(const float *s) {
  return make_uint4(pack_f16(s[0], s[1]), pack_f16(s[2], s[3]), pack_f16(s[4], s[5]), pack_f16(s[6], s[7]));
}

//@ gather_e4m3 : 16 floats as e4m3 in 16 bytes.
DEV uint4 gather_e4m3(const float *s) {
  return make_uint4(pack_e4m3(s[0], s[1], s[2], s[3]), pack_e4m3(s[4], s[5], s[6], s[7]), pack_e4m3(s[8], s[9], s[10], s[11]),
                    pack_e4m3(s[12], s[13], s[14], s[15]));
}

//@ last_block : whether this block is the last of `blocks` to get here, with all that the others wrote visible. All threads call it.
DEV bool last_block(u32 *ticket, u32 blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(ticket, blocks - 1) == blocks - 1;  // back at zero for the next launch
    __threadfence();
  }
  __syncthreads();
  return last;
}
