// SPDX-License-Identifier: Apache-2.0
// where and its gradient (docs/operators.md, "Elementwise").
#include "executor/call.h"

namespace shardproof::executor {
namespace {

// What operand `condition` chooses of x: what is not chosen counts as 0, whatever it is.
// `second`: what the condition does not choose.
template <class T>
Value<T> chosen(const Call<T>& c, std::size_t condition, const Value<T>& x, bool second) {
  const Value<T>& conditions = c.operand(condition);
  return broadcastMap(c, x, conditions, [=](T element, T by) {
    if (isUndefined(by)) return by;
    return isZero(by - T(1)) == second ? T(0) : element;
  });
}

template <class T>
void where(Call<T>& c) {
  c.out[0] = broadcastMap(c, chosen(c, 0, c.real(1), false), chosen(c, 0, c.real(2), true),
                          [](T x, T y) { return x + y; });
}

// Operands: the result's gradient, condition, x, y.
template <class T>
void whereBackward(Call<T>& c) {
  const Value<T>&condition = c.operand(1), &x = c.real(2), &y = c.real(3);
  const Value<T>& g = c.gradient(0, broadcastOf(broadcastOf(condition.shape, x.shape), y.shape));
  if (c.wants(0)) throw NoMeaning("a condition has no gradient");
  if (c.wants(1)) c.out[1] = summedTo(c, chosen(c, 1, g, false), x.shape);
  if (c.wants(2)) c.out[2] = summedTo(c, chosen(c, 1, g, true), y.shape);
}

}  // namespace

template <class T>
void addChoice(std::vector<NamedKernel<T>>& k) {
  k.push_back({"where", where<T>});
  k.push_back({"where_backward", whereBackward<T>});
}

template void addChoice(std::vector<NamedKernel<double>>&);
template void addChoice(std::vector<NamedKernel<long double>>&);
template void addChoice(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
