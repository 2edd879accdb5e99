// SPDX-License-Identifier: Apache-2.0
// Ring attention (arXiv 2310.01889): each rank of cp keeps its queries, keys and values go round.
// The model has one `attention`; its gradients are what the ranks compute by a backward pass of
// their own, as in FlashAttention (arXiv 2205.14135, algorithm 4).
//
// In turn i rank r has the keys and values of rank r - i. With neighbouring parts those of later
// ranks are masked, so a rank leaves these turns out. With --cp-balanced rank r has chunks r and
// 2 cp - 1 - r of 2 cp: of the keys of an earlier rank all queries attend to the first half, and
// to those of a later rank only the second half of the queries, to all of them.
#include <algorithm>
#include <optional>

#include "generate/builder.h"

namespace shardproof::generate {
namespace {

constexpr int kSequence = 2;  // the dimension of [batch, heads, sequence, width]

}  // namespace

// Appends the nodes of one turn, of the ranks with one cp coordinate. A tensor that several
// coordinates have is declared once.
class Builder::RingNodes {
 public:
  // A result of some keys, and the logarithm of the sum of their exponentials.
  struct Partial {
    std::string result = {}, lse = {};
  };
  struct Block {
    std::string queries, keys, values, gradient, lse, delta;
    std::string mask;  // empty: none
    std::string scale;
  };
  struct Gradients {
    std::string queries = {}, keys = {}, values = {};
  };

  // `prefix`: of the names of halves.
  RingNodes(Builder& builder, int chunk, std::vector<Node>& nodes, std::string prefix)
      : builder_(builder),
        tensors_(builder.program(chunk).tensors),
        nodes_(nodes),
        location_(builder.location_),
        prefix_(std::move(prefix)) {}

  void forward(int rank, const std::string& queries, const std::string& mask,
               const std::vector<std::pair<std::string, std::string>>& blocks,
               const std::string& scale, const Partial& to);
  Gradients gradients(const Block& block, const std::string& name);
  std::string added(const std::string& total, const std::string& part, std::optional<bool> second,
                    const std::string& to);

  // The following nodes are of the ranks with this cp coordinate; none: of all.
  void on(std::optional<int> cp) { cp_ = cp; }

  std::string node(const std::string& op, const std::vector<std::string>& in,
                   const std::string& out, const Shape& shape,
                   const std::vector<Attribute>& attributes = {}) {
    declare(out, shape);
    nodes_.push_back({.op = op,
                      .in = in,
                      .out = {out},
                      .attributes = attributes,
                      .location = location_,
                      .cp = cp_});
    return out;
  }
  void attention(const std::vector<std::string>& in, const Partial& to, const std::string& scale) {
    Shape rows = shape(in[0]);
    rows.back() = shape(in[2]).back();
    declare(to.result, rows);
    rows.pop_back();
    declare(to.lse, rows);
    nodes_.push_back({.op = "attention",
                      .in = in,
                      .out = {to.result, to.lse},
                      .attributes = {attributeNumber("scale", scale)},
                      .location = location_,
                      .cp = cp_});
  }
  // Of every rank, from the one before it in the ring.
  std::string passed(const std::string& in, const std::string& out) {
    declare(out, shape(in));
    Node node = builder_.communication("collective_permute", in, out, {"cp"});
    std::string pairs;
    const std::int64_t count = builder_.options_.cp;
    for (std::int64_t r = 0; r < count; ++r)
      pairs += (r == 0 ? "[[" : ", [") + std::to_string(r) + ", " +
               std::to_string((r + 1) % count) + "]";
    node.attributes = {};
    node.pairs = pairs + "]";
    node.location = location_;
    nodes_.push_back(std::move(node));
    return out;
  }

  std::string half(const std::string& x, bool second, int dim) {
    Shape s = shape(x);
    const std::int64_t n = s.at(static_cast<std::size_t>(dim)) / 2;
    s.at(static_cast<std::size_t>(dim)) = n;
    const std::string out = prefix_ + x + (second ? ".second" : ".first");
    if (!made_.emplace(cp_, out).second) return out;
    return node("slice", {x}, out, s,
                {attribute("dim", dim), attribute("start", second ? n : 0),
                 attribute("stop", second ? 2 * n : n)});
  }
  std::string joined(const std::string& a, const std::string& b, const std::string& out, int dim) {
    Shape s = shape(a);
    s.at(static_cast<std::size_t>(dim)) += shape(b).at(static_cast<std::size_t>(dim));
    return node("cat", {a, b}, out, s, {attribute("dim", dim)});
  }
  std::string like(const std::string& op, const std::vector<std::string>& in,
                   const std::string& out, const std::vector<Attribute>& attributes = {}) {
    return node(op, in, out, shape(in[0]), attributes);
  }
  std::string swapped(const std::string& x, const std::string& out) {
    Shape s = shape(x);
    std::swap(s[2], s[3]);
    return node("transpose", {x}, out, s, {attribute("dim0", 2), attribute("dim1", 3)});
  }
  std::string product(const std::string& a, const std::string& b, const std::string& out) {
    Shape s = shape(a);
    s[3] = shape(b)[3];
    return node("matmul", {a, b}, out, s);
  }
  // [b, h, s] beside [b, h, s, width].
  std::string column(const std::string& x, const std::string& out) {
    Shape s = shape(x);
    s.push_back(1);
    return node("unsqueeze", {x}, out, s, {attribute("dim", 3)});
  }
  Shape shape(const std::string& name) const { return tensors_.at(name).shape; }

 private:
  void addExponentials(const std::string& before, const std::string& now, bool second,
                       const std::string& to);
  std::string share(const Partial& part, const std::string& lse);
  void declare(const std::string& name, const Shape& shape) {
    if (tensors_.find(name) == nullptr)
      tensors_.add({.name = name, .shape = shape, .perMicrobatch = true});
  }

  Builder& builder_;
  Tensors& tensors_;
  std::vector<Node>& nodes_;
  const std::string location_;
  std::string prefix_;
  std::optional<int> cp_;
  std::set<std::pair<std::optional<int>, std::string>> made_;
};

namespace {

// What a rank does in a turn.
struct Turn {
  bool skipped = false, diagonal = false;
  bool secondQueries = false, firstKeys = false;  // --cp-balanced
  // Of names of tensors whose shapes depend on it.
  const char* suffix() const { return secondQueries ? ".later" : firstKeys ? ".earlier" : ""; }
};

Turn turnOf(int rank, int turn, bool balanced) {
  if (turn == 0) return {.diagonal = true};
  const bool earlier = rank >= turn;  // the keys are of rank - turn, not of a later rank
  if (!balanced) return {.skipped = !earlier};
  return {.secondQueries = !earlier, .firstKeys = earlier};
}

std::string numbered(int turn) { return ".turn" + std::to_string(turn); }

}  // namespace

// The logarithm of both sums of exponentials together. `second`: `now` is of the second half of the
// queries only.
void Builder::RingNodes::addExponentials(const std::string& before, const std::string& now,
                                         bool second, const std::string& to) {
  const std::string old = second ? half(before, true, kSequence) : before;
  const std::string own = second ? to + ".second_half" : to;
  const std::string a = like("exp", {old}, own + ".exp_before"),
                    b = like("exp", {now}, own + ".exp_now");
  like("log", {like("add", {a, b}, own + ".exp_sum")}, own);
  if (second) joined(half(before, false, kSequence), own, to, kSequence);
}

// By its share of all exponentials.
std::string Builder::RingNodes::share(const Partial& part, const std::string& lse) {
  const std::string less = like("sub", {part.lse, lse}, part.lse + ".less");
  const std::string power = like("exp", {less}, part.lse + ".share");
  return like("mul", {part.result, column(power, power + ".column")}, part.result + ".share");
}

// With weights p = exp(scale q k^T + mask - lse) of gradient g and d = sum(g o) over the width:
// dv = p^T g, ds = p (g v^T - d), dq = scale ds k, dk = scale ds^T q.
Builder::RingNodes::Gradients Builder::RingNodes::gradients(const Block& block,
                                                            const std::string& name) {
  std::string x =
      product(block.queries, swapped(block.keys, name + ".k.transposed"), name + ".products");
  const std::vector<Attribute> scale{attributeNumber("scalar", block.scale)};
  x = like("mul", {x}, name + ".scores", scale);
  if (!block.mask.empty()) x = like("apply_mask", {x, block.mask}, name + ".masked");
  const std::string p =
      like("exp", {like("sub", {x, block.lse}, name + ".shifted")}, name + ".weights");
  Gradients of;
  of.values = product(swapped(p, name + ".weights.transposed"), block.gradient, name + ".of_v.own");
  const std::string dp =
      product(block.gradient, swapped(block.values, name + ".v.transposed"), name + ".of_weights");
  const std::string less = like("sub", {dp, block.delta}, name + ".of_weights.less");
  const std::string ds =
      like("mul", {like("mul", {p, less}, name + ".of_scores")}, name + ".of_products", scale);
  of.queries = product(ds, block.keys, name + ".of_q.own");
  of.keys =
      product(swapped(ds, name + ".of_products.transposed"), block.queries, name + ".of_k.own");
  return of;
}

// `part` is of all positions of `total`, or of one half of them.
std::string Builder::RingNodes::added(const std::string& total, const std::string& part,
                                      std::optional<bool> second, const std::string& to) {
  if (total.empty()) return like("identity", {part}, to);
  if (!second) return like("add", {total, part}, to);
  const std::string sum = like("add", {half(total, *second, kSequence), part}, to + ".half");
  const std::string other = half(total, !*second, kSequence);
  return *second ? joined(other, sum, to, kSequence) : joined(sum, other, to, kSequence);
}

// All turns of the rank with coordinate `rank`. First the blocks and the logarithms of the sums of
// exponentials, then the results by their shares of the whole, as in Transformer Engine.
void Builder::RingNodes::forward(int rank, const std::string& queries, const std::string& mask,
                                 const std::vector<std::pair<std::string, std::string>>& blocks,
                                 const std::string& scale, const Partial& to) {
  on(rank);
  std::vector<std::pair<Partial, Turn>> parts;
  std::vector<Turn> turns;
  for (int turn = 0; turn < static_cast<int>(blocks.size()); ++turn)
    turns.push_back(turnOf(rank, turn, builder_.options_.cpBalanced));
  const bool alone =
      std::all_of(turns.begin() + 1, turns.end(), [](const Turn& turn) { return turn.skipped; });
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Turn what = turns[i];
    if (what.skipped) continue;
    auto [keys, values] = blocks[i];
    if (what.firstKeys) {
      keys = half(keys, false, kSequence);
      values = half(values, false, kSequence);
    }
    std::vector<std::string> in{what.secondQueries ? half(queries, true, kSequence) : queries, keys,
                                values};
    if (what.diagonal) in.push_back(mask);
    const std::string own = ".of" + numbered(static_cast<int>(i)) + what.suffix();
    parts.emplace_back(alone ? to : Partial{to.result + own, to.lse + own}, what);
    attention(in, parts.back().first, scale);
  }
  if (alone) return;
  std::string lse = parts[0].first.lse;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const std::string next = last ? to.lse : to.lse + numbered(static_cast<int>(i));
    addExponentials(lse, parts[i].first.lse, parts[i].second.secondQueries, next);
    lse = next;
  }
  std::string sum = share(parts[0].first, lse);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size(), second = parts[i].second.secondQueries;
    const std::string scaled = share(parts[i].first, second ? half(lse, true, kSequence) : lse);
    sum = added(sum, scaled, second ? std::optional(true) : std::nullopt,
                last ? to.result : to.result + numbered(static_cast<int>(i)));
  }
}

ValueId Builder::ringAttention(ValueId q, ValueId k, ValueId v, ValueId mask,
                               const std::string& name) {
  const Shape logical = shape(q);
  Shape result = logical;
  result.back() = shape(v).back();
  const std::string scale = attentionScale(logical.back()), lse = name + ".lse";
  out_.tensors.add({.name = name, .shape = result});
  out_.tensors.add({.name = lse, .shape = {logical[0], logical[1], logical[2]}});
  const std::vector<Attribute> attributes{attributeNumber("scale", scale)};
  model("attention", {at(q).logical, at(k).logical, at(v).logical, at(mask).logical}, {name, lse},
        attributes, location_);
  // Of no tensor of the model, so no cut points: the backward pass of a rank reads both, and that
  // of the model computes them again.
  declareLocal(chunk_, name, "", result, layout(q), true);
  declareLocal(chunk_, lse, "", {logical[0], logical[1], logical[2]}, layout(q), true);

  RingNodes ring(*this, chunk_, forwardNodes(chunk_), "");
  const int ranks = static_cast<int>(options_.cp);
  std::vector<std::pair<std::string, std::string>> blocks{{at(k).local, at(v).local}};
  for (int turn = 1; turn < ranks; ++turn) {
    const auto [keys, values] = blocks.back();
    const std::string ofKeys = ring.passed(keys, name + ".k" + numbered(turn));
    blocks.emplace_back(ofKeys, ring.passed(values, name + ".v" + numbered(turn)));
  }
  for (int rank = 0; rank < ranks; ++rank)
    ring.forward(rank, at(q).local, at(mask).local, blocks, scale, {name, lse});
  const ValueId value = addValue({.logical = name,
                                  .local = name,
                                  .shape = result,
                                  .layout = layout(q),
                                  .chunk = chunk_,
                                  .needsGradient = true});
  record_.push_back({.kind = Kind::kRingAttention,
                     .op = "attention",
                     .in = {q, k, v, mask},
                     .out = {value},
                     .attributes = attributes,
                     .location = location_,
                     .chunk = chunk_,
                     .layer = layer_});
  return value;
}

// Keys and values go round once more, and their gradients with them, which are home after a last
// turn.
void Builder::backwardRingAttention(const Record& record) {
  const Value out = at(record.out[0]), q = at(record.in[0]), k = at(record.in[1]),
              v = at(record.in[2]), mask = at(record.in[3]);
  std::vector<std::string> logical(4);
  for (std::size_t i = 0; i < 3; ++i) {
    const Value& operand = at(record.in[i]);
    logical[i] = fresh(operand.logical + ".grad");
    declareLogical(logical[i], operand.shape);
    declareLocal(record.chunk, logical[i], logical[i], operand.shape, gradientLayout(operand),
                 true);
  }
  model("attention_backward", {out.gradient, "", q.logical, k.logical, v.logical, mask.logical},
        logical, record.attributes, location_);

  const std::string base = out.logical + ".grad";
  const auto kept = [&](const std::string& local) { return saved(record.chunk, local); };
  const std::string queries = kept(q.local), given = out.localGradient, masks = kept(mask.local),
                    results = kept(out.logical), logs = kept(out.logical + ".lse");
  std::string keys = kept(k.local), values = kept(v.local), ofKeys, ofValues;
  RingNodes ring(*this, record.chunk, backwardNodes(record.chunk), "backward.");
  const std::string products = ring.like("mul", {given, results}, base + ".products");
  Shape one = ring.shape(products);
  one.back() = 1;
  const std::string delta = ring.node("sum", {products}, base + ".delta", one,
                                      {attribute("dim", 3), attributeFlag("keepdim", true)});
  const std::string lse = ring.column(logs, base + ".lse");
  const int ranks = static_cast<int>(options_.cp);
  std::vector<std::string> ofQueries(static_cast<std::size_t>(ranks));
  for (int turn = 0; turn < ranks; ++turn) {
    const std::string name = base + numbered(turn);
    if (turn > 0) {
      keys = ring.passed(keys, name + ".k");
      values = ring.passed(values, name + ".v");
      ofKeys = ring.passed(ofKeys, name + ".of_k.arrived");
      ofValues = ring.passed(ofValues, name + ".of_v.arrived");
    }
    for (int rank = 0; rank < ranks; ++rank) {
      ring.on(rank);
      const Turn what = turnOf(rank, turn, options_.cpBalanced);
      if (what.skipped) {
        ring.like("identity", {ofKeys}, name + ".of_k");
        ring.like("identity", {ofValues}, name + ".of_v");
        continue;
      }
      const auto rows = [&](const std::string& x) {
        return what.secondQueries ? ring.half(x, true, kSequence) : x;
      };
      const auto columns = [&](const std::string& x) {
        return what.firstKeys ? ring.half(x, false, kSequence) : x;
      };
      const RingNodes::Gradients own = ring.gradients({.queries = rows(queries),
                                                       .keys = columns(keys),
                                                       .values = columns(values),
                                                       .gradient = rows(given),
                                                       .lse = rows(lse),
                                                       .delta = rows(delta),
                                                       .mask = what.diagonal ? masks : "",
                                                       .scale = attentionScale(q.shape.back())},
                                                      name + what.suffix());
      const auto first = what.firstKeys ? std::optional(false) : std::nullopt;
      ring.added(ofKeys, own.keys, first, name + ".of_k");
      ring.added(ofValues, own.values, first, name + ".of_v");
      std::string& sum = ofQueries[static_cast<std::size_t>(rank)];
      sum = ring.added(sum, own.queries, what.secondQueries ? std::optional(true) : std::nullopt,
                       name + ".of_q");
    }
    ring.on({});
    ofKeys = name + ".of_k";
    ofValues = name + ".of_v";
  }
  ring.passed(ofKeys, logical[1]);
  ring.passed(ofValues, logical[2]);
  for (int rank = 0; rank < ranks; ++rank) {
    ring.on(rank);
    ring.like("identity", {ofQueries[static_cast<std::size_t>(rank)]}, logical[0]);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    cutPoint(record.chunk, logical[i], true);
    addGradient(record.in[i], logical[i], logical[i]);
  }
}

}  // namespace shardproof::generate
