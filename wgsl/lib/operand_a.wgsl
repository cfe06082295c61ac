// Operand a of a function of elements.
override A_AT: i32;
override A0: i32;
override A1: i32;
override A2: i32;
override A3: i32;
override A4: i32;
override A5: i32;

fn a_of(at: Index) -> u32 {
  return a[place(at, vec3<i32>(A0, A1, A2), vec3<i32>(A3, A4, A5), A_AT)];
}
