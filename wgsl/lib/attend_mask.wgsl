// What is added to the score of a query and a key.
override MASK_AT: i32;
override MASK0: i32;
override MASK1: i32;
override MASK2: i32;
override MASK3: i32;

fn mask_of(outer: i32, head: i32, row: i32, key: i32) -> f32 {
  return mask[MASK_AT + outer * MASK0 + head * MASK1 + row * MASK2 + key * MASK3];
}
