// SPDX-License-Identifier: Apache-2.0
#include "adversary/shardings.h"

#include <algorithm>
#include <set>
#include <string>

namespace shardproof::adversary {
namespace {

using ops::TensorInfo;
using ops::testing::Call;

int size(const Shape& s) { return static_cast<int>(s.size()); }
std::int64_t at(const Shape& s, int d) { return s[static_cast<std::size_t>(d)]; }
std::int64_t integer(const Attributes& a, const char* key, std::int64_t otherwise) {
  const auto it = a.find(key);
  return it == a.end() ? otherwise : std::get<Rational>(it->second).toInt64();
}
int wrapped(std::int64_t dim, int rank) { return static_cast<int>(dim < 0 ? dim + rank : dim); }

class Rules {
 public:
  Rules(const Call& call, const std::vector<TensorInfo>& results) : call_(call), results_(results) {
    if (call_.op.ends_with("_backward")) op_ = call_.op.substr(0, call_.op.size() - 9);
    else op_ = call_.op;
  }

  std::vector<Sharding> forward() {
    add(none());
    const int rank = results_.empty() ? 0 : size(results_[0].shape);
    if (elementwise()) {
      for (int d = 0; d < rank; ++d) aligned(d);
      linear();
    } else if (op_ == "view" || op_ == "reshape") {
      view();
    } else if (op_ == "transpose" || op_ == "permute" || op_ == "unsqueeze" || op_ == "squeeze" ||
               op_ == "expand") {
      moved();
    } else if (op_ == "slice" || op_ == "select" || op_ == "chunk" || op_ == "cat" ||
               op_ == "pad") {
      pieces();
    } else if (op_ == "sum" || op_ == "mean" || op_ == "amax" || op_ == "amin" ||
               op_ == "logsumexp") {
      reductions();
    } else if (op_ == "linear" || op_ == "matmul" || op_ == "einsum") {
      contraction();
    } else if (op_ == "softmax" || op_ == "log_softmax") {
      const int dim = wrapped(integer(call_.attributes, "dim", -1), rank);
      for (int d = 0; d < rank; ++d)
        if (d != dim) aligned(d);
    } else if (op_ == "layer_norm" || op_ == "rms_norm") {
      for (int d = 0; d + 1 < rank; ++d) firstAlone(d, d);
    } else {
      others(rank);
    }
    return std::move(list_);
  }

  // From the forward call's shardings: gradients are cut as their results are, operands likewise;
  // the gradient of what is whole while results are cut is a sum.
  std::vector<Sharding> backward() {
    const std::size_t operands = results_.size(), gradients = call_.in.size() - operands;
    Call forward{op_,
                 call_.attributes,
                 {call_.in.begin() + static_cast<std::ptrdiff_t>(gradients), call_.in.end()},
                 gradients};
    if (op_ == "identity" || op_ == "multiref" || op_ == "to" || op_ == "contiguous" ||
        op_ == "float") {
      add(none());
      for (int d = 0; d < size(results_[0].shape); ++d) aligned(d);
      linear();
      return std::move(list_);
    }
    const std::vector<TensorInfo> forwardResults = ops::testing::inferResults(forward);
    for (const Sharding& f : Rules(forward, forwardResults).forward()) {
      Sharding b;
      bool known = true, cut = false;
      for (std::size_t r = 0; r < f.out.size(); ++r) {
        known = known && f.out[r] >= kSum;
        cut = cut || f.out[r] >= 0;
        b.in.push_back(f.out[r] >= 0 ? f.out[r] : kUncut);
      }
      for (std::size_t i = 0; i < f.in.size(); ++i) {
        known = known && f.in[i] >= kUncut;
        b.in.push_back(f.in[i]);
        // Of what several coordinates use, each has its own contribution. (Whole operands of a
        // result that is a sum have none to be told apart.)
        b.out.push_back(results_[i].absent ? kUncut : f.in[i] >= 0 ? f.in[i] : cut ? kSum : kUncut);
        known = known && (f.in[i] >= 0 || f.out.empty() || f.out[0] != kSum || results_[i].absent);
      }
      b.window = f.window;
      if (known) add(b);
    }
    return std::move(list_);
  }

 private:
  Sharding none() const {
    return {
        std::vector<int>(call_.in.size(), kUncut), std::vector<int>(results_.size(), kUncut), {}};
  }
  void add(Sharding s) { list_.push_back(std::move(s)); }
  const Shape& in(std::size_t i) const { return call_.in[i].shape; }
  const Shape& out(std::size_t i = 0) const { return results_[i].shape; }
  bool elementwise() const {
    static const std::set<std::string> kUpdates{"clip_grad", "sgd", "adamw"};  // by position, too
    const ops::Registry& registry = ops::Registry::instance();
    return isElementwise(op_) || registry.at(registry.find(op_)).traits.elementwise ||
           kUpdates.contains(op_);
  }

  // Broadcasting: dimension d of the results, and what it is in each operand.
  void aligned(int d) {
    Sharding s = none();
    const Shape& whole = out();
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      const int own = d - (size(whole) - size(in(i)));
      if (call_.in[i].present && own >= 0 && at(in(i), own) == at(whole, d)) s.in[i] = own;
    }
    for (int& o : s.out) o = d;
    add(s);
  }
  // The first operand and all results, the rest whole.
  void firstAlone(int from, int to) {
    Sharding s = none();
    s.in[0] = from;
    for (int& o : s.out) o = to;
    add(s);
  }
  void linear() {
    static const std::set<std::string> kUnary{"identity", "to",  "contiguous",
                                              "float",    "neg", "multiref"};
    const bool scalar = call_.attributes.contains("scalar");
    if (std::any_of(call_.in.begin(), call_.in.end(),
                    [](const auto& o) { return o.present && o.element != ElementKind::kReal; }))
      return;
    const auto with = [&](std::vector<int> operands) {
      Sharding s = none();
      s.in = std::move(operands);
      for (int& o : s.out) o = kSum;
      add(s);
    };
    if (kUnary.contains(op_) || ((op_ == "mul" || op_ == "div") && scalar)) {
      Sharding s = none();
      for (int& i : s.in) i = kSum;
      for (int& o : s.out) o = kSum;
      add(s);
    }
    if ((op_ == "add" || op_ == "sub") && !scalar) with({kSum, kSum});
    if (op_ == "mul" && !scalar) {
      with({kSum, kUncut});
      with({kUncut, kSum});
    }
    if (op_ == "div" && !scalar) with({kSum, kUncut});
  }
  // Row-major regrouping: the leading dimension of each group of factors.
  void view() {
    int i = 0, o = 0;
    while (i < size(in(0)) && o < size(out())) {
      firstAlone(i, o);
      std::int64_t a = at(in(0), i++), b = at(out(), o++);
      while (a != b) {
        if (a < b && i < size(in(0))) a *= at(in(0), i++);
        else if (b < a && o < size(out())) b *= at(out(), o++);
        else return;
      }
    }
  }
  void moved() {
    const int rank = size(in(0));
    if (op_ == "transpose" || op_ == "permute") {
      std::vector<int> source(static_cast<std::size_t>(rank));
      for (int d = 0; d < rank; ++d) source[static_cast<std::size_t>(d)] = d;
      if (op_ == "transpose") {
        std::swap(
            source[static_cast<std::size_t>(wrapped(integer(call_.attributes, "dim0", 0), rank))],
            source[static_cast<std::size_t>(wrapped(integer(call_.attributes, "dim1", 0), rank))]);
      } else {
        const auto& dims = std::get<std::vector<std::int64_t>>(call_.attributes.at("dims"));
        for (int d = 0; d < rank; ++d)
          source[static_cast<std::size_t>(d)] = wrapped(dims[static_cast<std::size_t>(d)], rank);
      }
      for (int d = 0; d < rank; ++d) firstAlone(source[static_cast<std::size_t>(d)], d);
    } else if (op_ == "expand") {
      for (int d = 0; d < size(out()); ++d) {
        const int own = d - (size(out()) - rank);
        Sharding s = none();
        s.out[0] = d;
        if (own >= 0 && at(in(0), own) == at(out(), d)) s.in[0] = own;
        add(s);
      }
    } else {  // unsqueeze, squeeze: dimensions of other sizes keep their order; of equal sizes the
              // first that fits
      int o = 0;
      for (int d = 0; d < rank; ++d) {
        if (at(in(0), d) == 1) continue;
        while (o < size(out()) && at(out(), o) == 1) ++o;
        if (o < size(out())) firstAlone(d, o++);
      }
    }
  }
  void pieces() {
    const int rank = size(in(0));
    if (op_ == "pad") {
      const auto& pad = std::get<std::vector<std::int64_t>>(call_.attributes.at("pad"));
      for (int d = 0; d < rank - static_cast<int>(pad.size() / 2); ++d) firstAlone(d, d);
      return;
    }
    const int dim = wrapped(integer(call_.attributes, "dim", 0), rank);
    for (int d = 0; d < rank; ++d) {
      if (d == dim) continue;
      Sharding s = none();
      for (int& i : s.in) i = d;
      s.out[0] = op_ == "select" && d > dim ? d - 1 : d;
      add(s);
    }
    if (op_ == "slice") {  // each coordinate takes its own stretch of what is whole
      const std::int64_t length = at(out(), dim), step = integer(call_.attributes, "step", 1),
                         whole = at(in(0), dim);
      std::int64_t start = integer(call_.attributes, "start", 0);
      if (start < 0) start += whole;
      Sharding s = none();
      s.out[0] = dim;
      s.window = [=](Attributes& a, std::int64_t c, std::int64_t n) {
        const std::int64_t piece = length / n, from = start + c * piece * step;
        a["start"] = Rational(from);
        a["stop"] = Rational(std::min(whole, from + (piece - 1) * step + 1));
      };
      add(s);
    }
  }
  void reductions() {
    const int rank = size(in(0));
    std::vector<char> reduced(static_cast<std::size_t>(rank), 0);
    const auto it = call_.attributes.find("dim");
    if (it == call_.attributes.end()) reduced.assign(reduced.size(), 1);
    else if (const auto* list = std::get_if<std::vector<std::int64_t>>(&it->second))
      for (const std::int64_t d : *list) reduced[static_cast<std::size_t>(wrapped(d, rank))] = 1;
    else reduced[static_cast<std::size_t>(wrapped(integer(call_.attributes, "dim", 0), rank))] = 1;
    const auto keep = call_.attributes.find("keepdim");
    const bool keepdim = keep != call_.attributes.end() && std::get<bool>(keep->second);
    int o = 0;
    for (int d = 0; d < rank; ++d) {
      const bool gone = reduced[static_cast<std::size_t>(d)] != 0;
      if (!gone) firstAlone(d, o);
      else if (op_ == "sum") firstAlone(d, kSum);
      else if (op_ == "mean") firstAlone(d, kMean);
      else if (op_ == "amax") firstAlone(d, kMax);
      else if (op_ == "amin") firstAlone(d, kMin);
      if (!gone || keepdim) ++o;
    }
    if (op_ == "sum" || op_ == "mean") firstAlone(kSum, kSum);
  }
  // Each operand's dimensions by letter, and the result's; a letter that the result has not is
  // summed.
  void contraction() {
    std::vector<std::string> operands(call_.in.size());
    std::string result;
    if (op_ == "einsum") {
      std::string equation = std::get<std::string>(call_.attributes.at("equation"));
      std::erase(equation, ' ');
      const auto arrow = equation.find("->");
      result = equation.substr(arrow + 2);
      std::size_t from = 0;
      for (std::string& operand : operands) {
        const auto to = std::min(equation.find(',', from), arrow);
        operand = equation.substr(from, to - from);
        from = to + 1;
      }
    } else if (op_ == "linear") {
      for (int d = 0; d + 1 < size(in(0)); ++d) operands[0] += static_cast<char>('a' + d);
      result = operands[0] + "n";
      operands[0] += "k";
      operands[1] = "nk";
      if (operands.size() > 2) operands[2] = "n";
    } else {
      const int rank = std::max(size(in(0)), size(in(1)));
      const auto lead =
          [&](const Shape& s) {  // leading dimensions, aligned at the end; of size 1: broadcast
            std::string letters;
            for (int d = 0; d + 2 < size(s); ++d)
              letters += at(s, d) == 1 ? '.' : static_cast<char>('a' + rank - size(s) + d);
            return letters;
          };
      operands[0] = size(in(0)) == 1 ? "k" : lead(in(0)) + "mk";
      operands[1] = size(in(1)) == 1 ? "k" : lead(in(1)) + "kn";
      const int batch = size(out()) - (size(in(0)) == 1 ? 0 : 1) - (size(in(1)) == 1 ? 0 : 1);
      for (int d = 0; d < batch; ++d) result += static_cast<char>('a' + rank - 2 - batch + d);
      if (size(in(0)) > 1) result += "m";
      if (size(in(1)) > 1) result += "n";
    }
    std::set<char> letters(result.begin(), result.end());
    for (const std::string& operand : operands) letters.insert(operand.begin(), operand.end());
    letters.erase('.');
    for (const char letter : letters) {
      Sharding s = none();
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const auto d = operands[i].find(letter);
        if (call_.in[i].present && d != std::string::npos) s.in[i] = static_cast<int>(d);
      }
      const auto d = result.find(letter);
      s.out[0] = d == std::string::npos ? kSum : static_cast<int>(d);
      if (s.out[0] == kSum && op_ == "linear" && call_.in.size() > 2 && call_.in[2].present)
        continue;  // the bias would be added by each
      add(s);
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {  // linear in each operand
      if (op_ == "linear" && call_.in.size() > 2 && call_.in[2].present) break;
      if (!call_.in[i].present) continue;
      Sharding s = none();
      s.in[i] = kSum;
      s.out[0] = kSum;
      add(s);
    }
  }
  void others(int rank) {
    if (op_ == "embedding") {
      for (int d = 0; d < size(in(0)); ++d) firstAlone(d, d);
      Sharding columns = none();
      columns.in[1] = 1;
      columns.out[0] = rank - 1;
      add(columns);
      Sharding rows = none();
      rows.in[1] = 0;
      rows.out[0] = kSum;
      const std::int64_t start = integer(call_.attributes, "start", 0), all = at(in(1), 0);
      rows.window = [=](Attributes& a, std::int64_t c, std::int64_t n) {
        window(a, "start", "stop", start, all / n, c);
      };
      add(rows);
    } else if (op_ == "one_hot") {
      for (int d = 0; d + 1 < rank; ++d) firstAlone(d, d);
      Sharding s = none();
      s.out[0] = rank - 1;
      const std::int64_t start = integer(call_.attributes, "start", 0), all = at(out(), rank - 1);
      s.window = [=](Attributes& a, std::int64_t c, std::int64_t n) {
        window(a, "start", "stop", start, all / n, c);
      };
      add(s);
    } else if (op_ == "cross_entropy") {
      const auto it = call_.attributes.find("reduction");
      const std::string reduction =
          it == call_.attributes.end() ? "mean" : std::get<std::string>(it->second);
      for (int d = 0; d < size(in(1)); ++d) {
        Sharding s = none();
        s.in = {d, d};
        s.out[0] = reduction == "none" ? d : reduction == "sum" ? kSum : kMean;
        add(s);
      }
    } else if (op_ == "create_mask") {
      Sharding s = none();
      for (int& i : s.in) i = 0;
      if (s.in.size() > 1) s.in[1] = kUncut;
      add(s);  // the mask does not depend on the batch
    } else if (op_ == "apply_rotary_emb") {
      for (const int d : {0, 1, 2}) {
        Sharding s = none();
        s.in = {d, d, d == 1 ? 0 : kUncut};
        s.out = {d, d};
        add(s);
      }
    } else if (op_ == "moe_gate") {
      firstAlone(0, 0);
    } else if (op_ == "moe_experts") {
      Sharding rows = none();
      rows.in[0] = rows.in[1] = rows.in[2] = 0;
      rows.out[0] = 0;
      add(rows);
      Sharding hidden = none();
      hidden.in[3] = hidden.in[4] = 1;
      hidden.in[5] = 2;
      hidden.out[0] = kSum;
      add(hidden);
      Sharding experts = none();
      experts.in[3] = experts.in[4] = experts.in[5] = 0;
      experts.out[0] = kSum;
      const std::int64_t start = integer(call_.attributes, "local_expert_start", 0),
                         all = at(in(3), 0);
      experts.window = [=](Attributes& a, std::int64_t c, std::int64_t n) {
        window(a, "local_expert_start", "local_expert_end", start, all / n, c);
      };
      add(experts);
    }
  }
  static void window(Attributes& a, const char* start, const char* stop, std::int64_t from,
                     std::int64_t piece, std::int64_t c) {
    a[start] = Rational(from + c * piece);
    a[stop] = Rational(from + (c + 1) * piece);
  }

  const Call& call_;
  const std::vector<TensorInfo>& results_;
  std::string op_;
  std::vector<Sharding> list_;
};

}  // namespace

bool isElementwise(const std::string& op) {
  const ops::OperatorInfo& info = ops::Registry::instance().at(ops::Registry::instance().find(op));
  // Views change the shape, and a mask depends on the position.
  const bool copies = info.traits.rearranges && info.attributes.empty();
  return !info.followsLogicalPosition && info.maxOperands == 1 &&
         (info.traits.elementwise || copies);
}

const std::vector<std::string>& unaryOperators() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const OperatorId id : firstIds<OperatorId>(ops::Registry::instance().size())) {
      const ops::OperatorInfo& info = ops::Registry::instance().at(id);
      if (isElementwise(info.name) && info.maxResults == 1 && info.traits.total &&
          (info.differentiable || info.traits.rearranges))
        list.push_back(info.name);
    }
    return list;
  }();
  return names;
}

std::vector<Sharding> shardingsOf(const Call& call, const std::vector<TensorInfo>& results) {
  Rules rules(call, results);
  return call.op.ends_with("_backward") ? rules.backward() : rules.forward();
}

void adaptShapes(const std::string& op, Attributes& attributes, const std::vector<Shape>& operands,
                 const std::vector<Shape>& results) {
  const auto size = attributes.find("size");
  if (size != attributes.end()) size->second = op.ends_with("_backward") ? operands[0] : results[0];
}

}  // namespace shardproof::adversary
