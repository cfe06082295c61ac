// d and m of a block of 32 within a superblock of 256, w = d * sc * q - dmin * m. The plane holds
// the first 16 bytes of GGUF's Q4_K and Q5_K blocks: halves d and dmin, then twelve bytes with six
// bits of sc and of m for each block (get_scale_min_k4 in ggml-quants.c).
fn load_scale(i: u32) -> vec2<f32> {
  let head = w_scales[i >> 3u];
  let bytes = (head.yzw >> vec3<u32>(8u * (i & 3u))) & vec3<u32>(0xffu);
  let first = bytes.xy & vec2<u32>(63u);
  // Of blocks 4 to 7 four bits are in the last four bytes, and two above those of blocks 0 to 3.
  let second = vec2<u32>(bytes.z & 15u, bytes.z >> 4u) | ((bytes.xy >> vec2<u32>(2u)) & vec2<u32>(48u));
  let scale = vec2<f32>(select(first, second, (i & 4u) == 4u));
  return unpack2x16float(head.x) * vec2<f32>(scale.x, -scale.y);
}
