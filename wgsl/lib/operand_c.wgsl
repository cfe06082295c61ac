// Operand c of a function of elements.
override C_AT: i32;
override C0: i32;
override C1: i32;
override C2: i32;
override C3: i32;
override C4: i32;
override C5: i32;

fn c_of(at: Index) -> u32 {
  return c[place(at, vec3<i32>(C0, C1, C2), vec3<i32>(C3, C4, C5), C_AT)];
}
