// Writes 32 signed bytes as crossed pairs, in the order in which pairs_nibbles.wgsl meets the weights:
// word c of the weights holds elements 4c to 4c + 3, and from 16 on in its upper nibbles.
fn crossed(word: u32, first: u32) -> u32 {
  let x = unpack4xI8(word);
  return bitcast<u32>(x[first + 2u] + (x[first] << 16u));
}

fn store_term(i: u32, words: array<u32, 8>) {
  for (var c = 0u; c < 4u; c++) {
    y_quants[4u * i + c] = vec4<u32>(crossed(words[c], 0u), crossed(words[c], 1u),
                                     crossed(words[c + 4u], 0u), crossed(words[c + 4u], 1u));
  }
}
