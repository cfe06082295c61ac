// Operand b of a function of elements.
override B_AT: i32;
override B0: i32;
override B1: i32;
override B2: i32;
override B3: i32;
override B4: i32;
override B5: i32;

fn b_of(at: Index) -> u32 {
  return b[place(at, vec3<i32>(B0, B1, B2), vec3<i32>(B3, B4, B5), B_AT)];
}
