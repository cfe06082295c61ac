// Writes 32 signed bytes as they are: see dot_bytes.wgsl.
fn store_term(i: u32, words: array<u32, 8>) {
  y_quants[2u * i] = vec4<u32>(words[0], words[1], words[2], words[3]);
  y_quants[2u * i + 1u] = vec4<u32>(words[4], words[5], words[6], words[7]);
}
