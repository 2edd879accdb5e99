// SPDX-License-Identifier: Apache-2.0
// Definedness: quotients, roots and logarithms of what is zero or negative somewhere or everywhere.
// Model and plan are one expression, written twice; on either side any value may be replaced by an
// expression that is the same wherever both are defined (x s / s, exp(log x), x + 0 / z), the same
// nowhere, or another one; tensors that no output needs have no value at all, and cut points speak
// of them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "adversary/case.h"
#include "adversary/graph_writer.h"

namespace shardproof::adversary {
namespace {

using Names = std::vector<std::string>;

class Side {
 public:
  Side(GraphWriter& writer, Random& random) : w_(writer), random_(random) {}

  std::string n(const std::string& op, const Names& in, const Json& attributes = Json::object()) {
    return w_.node(op, in, attributes);
  }
  std::string scaled(const std::string& op, const std::string& x, double scalar) {
    return n(op, {x}, {{"scalar", scalar}});
  }

  // Zero everywhere, more or less visibly.
  std::string zero(const std::string& x, const std::string& y) {
    switch (random_.below(5)) {
      case 0:
        return n("sub", {x, x});
      case 1:
        return scaled("mul", x, 0);
      case 2: {  // (x + y)^2 - x^2 - y^2 - 2 x y
        const std::string whole = n("sub", {n("square", {n("add", {x, y})}), n("square", {x})});
        return n("sub", {n("sub", {whole, n("square", {y})}), n("mul", {x, y})}, {{"alpha", 2}});
      }
      case 3:
        return n("sub", {n("mul", {n("add", {x, y}), n("sub", {x, y})}),
                         n("sub", {n("square", {x}), n("square", {y})})});
      default:
        return n("relu", {n("neg", {n("square", {x})})});
    }
  }
  // Another way to write x, which may have a value at fewer places, or at more, or be something
  // else.
  std::string other(const std::string& x, const std::string& s) {
    switch (random_.below(22)) {
      case 0:
        return n("div", {n("mul", {x, s}), s});
      case 1:
        return n("mul", {n("div", {x, s}), s});
      case 2:
        return n("add", {n("sub", {x, s}), s});
      case 3:
        return n("exp", {n("log", {x})});
      case 4:
        return n("log", {n("exp", {x})});
      case 5:
        return n("square", {n("sqrt", {x})});
      case 6:
        return n("sqrt", {n("square", {x})});
      case 7:
        return scaled("pow", scaled("pow", x, -1), -1);
      case 8:
        return n("mul", {x, n("div", {s, s})});
      case 9:
        return n("add", {x, scaled("mul", n("log", {s}), 0)});
      case 10:
        return n("add", {x, zero(s, x)});
      case 11:
        return n("mul", {x, scaled("add", zero(s, x), 1)});
      case 12:
        return n("mul", {x, n("div", {zero(s, x), zero(s, x)})});
      case 13:
        return n("div", {n("mul", {x, zero(x, s)}), zero(x, s)});
      case 14:
        return scaled("add", x, 1);
      case 15:
        return n("relu", {x});
      case 16:
        return n("add", {x, n("sub", {n("rsqrt", {s}), n("rsqrt", {s})})});
      case 17:
        return n("mul", {n("mul", {x, n("rsqrt", {s})}), n("sqrt", {s})});
      case 18: {  // beside something else, and taken out again
        const std::string beside = n("div", {s, random_.chance(60) ? zero(s, x) : x});
        const std::int64_t dim = static_cast<std::int64_t>(w_.shape(x).size()) - 1,
                           length = w_.shape(x).back();
        return n("slice", {n("cat", {x, beside}, {{"dim", dim}})},
                 {{"dim", dim}, {"start", 0}, {"stop", length}});
      }
      case 19:
        return scaled("pow", scaled("pow", x, 0.5), 2);
      case 20:
        return n("mul", {x, scaled("pow", s, 0)});
      default:
        return n("div", {n("sub", {n("square", {x}), n("square", {s})}),
                         n("add", {x, s})});  // x - s, where x + s is not 0
    }
  }

 private:
  GraphWriter& w_;
  Random& random_;
};

}  // namespace

Case definedness(Random& random) {
  const std::int64_t dp = random.pick({1, 2, 2, 4});
  const bool cut = random.chance(50);
  const Shape whole = random.chance(60) ? Shape{4} : Shape{4, 2};
  Shape piece = whole;
  if (cut) piece[0] /= dp;
  GraphWriter model("m"), local("l");
  Side left(model, random), right(local, random);
  std::vector<std::pair<std::string, std::string>> pairs, claimed;
  for (const char* name : {"a", "b", "c"})
    pairs.emplace_back(model.given(name, whole), local.given(name, piece));
  const auto some = [&] { return pairs[random.index(pairs.size())]; };
  const auto both = [&](const std::string& op,
                        const std::vector<std::pair<std::string, std::string>>& in,
                        const Json& attributes = Json::object()) {
    Names l, r;
    for (const auto& [x, y] : in) {
      l.push_back(x);
      r.push_back(y);
    }
    pairs.emplace_back(left.n(op, l, attributes), right.n(op, r, attributes));
  };
  const std::int64_t steps = random.between(1, 5);
  for (std::int64_t i = 0; i < steps; ++i) {
    switch (random.below(8)) {
      case 0:
        both("add", {some(), some()});
        break;
      case 1:
        both("mul", {some(), some()});
        break;
      case 2:
        both("sub", {some(), some()});
        break;
      case 3:
        both("div", {some(), some()});
        break;
      case 4:
        both(random.pick({"square", "exp", "neg", "relu", "identity"}), {some()});
        break;
      case 5:
        both(random.pick({"log", "sqrt", "rsqrt"}), {some()});
        break;
      case 6:
        both("pow", {some()}, {{"scalar", random.pick({-1.0, 2.0, 0.5, -0.5, 1.5})}});
        break;
      default:
        both("mul", {some()}, {{"scalar", random.pick({0.0, 2.0, -1.0})}});
    }
    auto& [l, r] = pairs.back();
    const auto& s = pairs[random.index(pairs.size() - 1)];
    if (random.chance(30)) l = left.other(l, s.first);
    if (random.chance(20)) r = right.other(r, s.second);
    if (random.chance(40)) claimed.push_back(pairs.back());
  }
  const auto output = pairs.back();
  while (random.chance(45)) {  // what no output needs
    const auto& s = some();
    const std::string l = random.chance(60)
                              ? left.n("div", {s.first, left.zero(s.first, some().first)})
                              : left.other(s.first, some().first);
    const std::string r = random.chance(50) ? some().second : right.other(s.second, some().second);
    claimed.emplace_back(l, r);
  }
  // What is claimed must be produced: given tensors have no cut point of their own here.
  std::erase_if(claimed,
                [&](const auto& p) { return p.first == "a" || p.first == "b" || p.first == "c"; });

  Json step;
  if (cut && dp > 1) {
    std::vector<std::int64_t> by(whole.size(), 0);
    by[0] = piece[0];
    step["dp"] = by;
  }
  const Shape low(whole.size(), 0);
  const Shape& length = piece;
  Json lineage = Json::array();
  for (const char* name : {"a", "b", "c"})
    lineage.push_back(entryOf(name, "input", low, length, name, step));
  for (const auto& [l, r] : claimed) {
    const auto produced = [](const Json& tensors, const std::string& name) {
      return tensors.contains(name) && !tensors[name].contains("kind");
    };
    if (produced(model.tensors(), l) && local.has(r))
      lineage.push_back(entryOf(l, "cut_point", low, length, r, step));
  }
  lineage.push_back(entryOf(output.first, "output", low, length, output.second, step));
  return {
      modelOf(model, {output.first}),
      planOf(Json::array({Json::array({"dp", dp})}), 1, Json::array({local.program()}), lineage),
      {}};
}

}  // namespace shardproof::adversary
