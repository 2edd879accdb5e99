// SPDX-License-Identifier: Apache-2.0
// Writes model and plan at the same time. Each call of the architecture appends one logical
// operator and, from the layouts of its operands and results, the operator that every rank of the
// pipeline stage runs on its piece. Calls that only move data (reduceOverTp, ...) append
// communication to the plan and nothing to the model. All are recorded; `backward` walks the record
// from the end and emits the gradients, `finish` the reduction of the gradients and the optimizer's
// step.
//
// Right plans come from four conventions, which are Megatron-LM's:
// * A replicated value that goes into a column-split operator has a gradient that is a partial sum
// over tp; `enterTp` marks the place, and
//   its backward is the all-reduce. `reduceOverTp` is the all-reduce after a row-split operator;
//   its backward is the identity.
// * With sequence parallelism these are an all-gather (backward: reduce-scatter) and a
// reduce-scatter (backward: all-gather), and what lies
//   between works on a piece of the sequence: the parameters there have gradients that are partial
//   sums over tp.
// * The loss is a mean: each microbatch of each dp rank divides its own mean by their number, so
// gradients are summed over microbatches
//   and over dp.
// * Experts that are cut over a part of dp get the rows of all ranks of that part (`enterEp`: an
//   all-gather, backward: a reduce-scatter) and give back partial sums (`reduceOverEp`: a
//   reduce-scatter, backward: an all-gather).
// * With context parallelism each rank of cp has a part of each sequence. Keys and values are
//   gathered (`enterCp`: an all-gather, backward: a reduce-scatter). The loss of a microbatch is
//   divided by the number of parts, too, and gradients are summed over dp and cp.
// * A gradient that arrives from several consumers is added up in the order of arrival, in the
// model and in the plan alike.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "generate/graph.h"
#include "generate/options.h"

namespace shardproof::generate {

using ValueId = int;

Attribute attribute(std::string key, std::int64_t value);
Attribute attributeText(std::string key, const std::string& value);
Attribute attributeNumber(std::string key, std::string decimal);
Attribute attributeFlag(std::string key, bool value);
Attribute attributeIntegers(std::string key, const std::vector<std::int64_t>& values);
Attribute attributePerTp(std::string key, std::int64_t first, std::int64_t perTp,
                         std::int64_t perEp = 0);
Attribute attributePerCp(std::string key, std::int64_t first, std::int64_t perCp);
Attribute attributeShape(std::string key);
// 1 / sqrt(width of a head), as the shortest decimal that is this double.
std::string attentionScale(std::int64_t width);
// What a node of a rank, and of the model, has in place of attributes that follow the shape of its
// result or the rank.
std::vector<Attribute> withShape(std::vector<Attribute> attributes, const Shape& shape);
std::vector<Attribute> logicalAttributes(std::vector<Attribute> attributes, const Shape& shape,
                                         const Options& options);

struct Result {
  std::string name;
  Shape shape;  // logical
  Layout layout;
  std::string dtype = {};  // int64: indices, which get no gradient
};

class Builder {
 public:
  explicit Builder(const Options& options);

  // Where the following calls go: the chunk of the pipeline, and the text for `loc`.
  void setChunk(int chunk) { chunk_ = chunk; }
  int chunk() const { return chunk_; }
  void setLocation(std::string location) { location_ = std::move(location); }
  // What lies between is recomputed in the backward pass if the options ask for it.
  void beginLayer();
  void endLayer();

  // The local tensor of an input on this chunk's ranks.
  ValueId input(const std::string& name, const Shape& shape, const std::string& dtype,
                const Layout& layout);
  // `gradientOverTp`: the parameter is replicated over tp and each rank has only a part of its
  // gradient. Asked for again, it is the same parameter; on another stage that has a copy of its
  // own, and the gradients of both are added up (tied embeddings).
  ValueId parameter(const std::string& name, const Shape& shape, const Layout& layout,
                    bool gradientOverTp = false);

  std::vector<ValueId> apply(const std::string& op, const std::vector<ValueId>& in,
                             const std::vector<Attribute>& attributes,
                             const std::vector<Result>& results);
  ValueId apply(const std::string& op, const std::vector<ValueId>& in,
                const std::vector<Attribute>& attributes, const Result& result) {
    return apply(op, in, attributes, std::vector<Result>{result}).front();
  }
  // The same number everywhere, in the model and on each stage that asks for it.
  ValueId constant(const std::string& name, const Shape& shape, const std::string& dtype,
                   const std::string& value);
  // An operator without gradient; the result is the `place`th, and the only one.
  ValueId applyFixed(const std::string& op, const std::vector<ValueId>& in,
                     const std::vector<Attribute>& attributes, const Result& result,
                     std::size_t place = 0);
  // The loss: `op` averages over everything, in the model over the whole batch and in the plan over
  // a microbatch. The cross entropy of logits that are cut over tp becomes Megatron-LM's: maximum,
  // sum of exponentials and the label's logit are all-reduced. Of several losses each counts
  // `weight` times in what the gradients are of; their sum is the output "loss".
  void meanLoss(const std::string& op, const std::vector<ValueId>& in,
                const std::vector<Attribute>& attributes, const std::string& name,
                const std::string& weight = "1");

  ValueId enterTp(
      ValueId value);  // replicated (or sequence piece) -> replicated, gradient partial over tp
  ValueId reduceOverTp(
      ValueId value,
      bool whole = false);  // partial over tp -> replicated (or, unless `whole`, sequence piece)
  ValueId enterEp(ValueId value);       // own rows -> the rows of all ranks of the ep group
  ValueId reduceOverEp(ValueId value);  // partial over ep, rows of the group -> own rows
  // softmax(q k^T / sqrt(width) + mask) v for the causal mask that `ringMask` made, with keys and
  // values that go round over cp.
  ValueId ringAttention(ValueId q, ValueId k, ValueId v, ValueId mask, const std::string& name);
  ValueId ringMask(ValueId tokens);
  ValueId enterCp(ValueId value);  // own part of the sequence -> all of it
  // The rank's part of what has all positions, along `dim`. Of values without gradient.
  ValueId ownSequence(ValueId value, int dim);
  // Where every tp rank does the same work: between replicated and sequence pieces. Nothing without
  // sequence parallelism.
  ValueId scatterSequence(ValueId value);
  ValueId gatherSequence(ValueId value);
  ValueId toChunk(ValueId value, int chunk);  // send and receive where the rank is another one

  const Shape& shape(ValueId v) const { return values_.at(static_cast<std::size_t>(v)).shape; }
  const Layout& layout(ValueId v) const { return values_.at(static_cast<std::size_t>(v)).layout; }
  // --cut-points layers keeps its gradient, too: a sum over ranks that the model has formed before
  // it goes on, which a proof through a whole layer would have to multiply out.
  void markGradient(ValueId v) { at(v).gradientKept = true; }
  void markBoundary(ValueId v);  // kept by --cut-points layers, with its gradient

  void backward();
  Generated finish();

 private:
  class RingNodes;
  struct Value {
    std::string logical = {}, local = {};
    Shape shape = {};
    Layout layout = {};
    int chunk = 0;
    bool needsGradient = false, perMicrobatch = true, boundary = false;
    bool gradientKept = false;
    // Gradients are partial sums.
    bool gradientSumTp = false, gradientSumEp = false, gradientSumCp = false;
    int parameter = -1;
    std::string gradient = {}, localGradient = {};  // what has arrived so far; empty: nothing
    std::string dtype = {};                         // of what is produced; empty: real
  };
  struct Parameter {
    std::string name = {};
    ValueId value = -1;
    int chunk = 0;
    Layout layout = {}, stepLayout = {};  // as used, and as the optimizer holds it
    std::string local = {};               // what the optimizer updates
    bool gradientOverTp = false;
    int tiedTo = -1;  // the parameter that this is another stage's copy of
  };
  enum class Kind {
    kOperator,
    kLoss,
    kEnterTp,
    kReduceOverTp,
    kEnterEp,
    kReduceOverEp,
    kEnterCp,
    kRingAttention,
    kScatter,
    kGather,
    kMove
  };
  struct Record {
    Kind kind = Kind::kOperator;
    std::string op = {};
    std::vector<ValueId> in = {}, out = {};
    std::vector<Attribute> attributes = {};
    std::string location = {};
    int chunk = 0, layer = -1;
    std::string weight = {};  // of a loss
  };
  struct Layer {
    int chunk = 0;
    std::size_t begin = 0, end = 0;  // in the chunk's forward nodes
    bool recomputed = false;
  };

  Value& at(ValueId v) { return values_.at(static_cast<std::size_t>(v)); }
  int rankOf(int chunk) const { return chunk % static_cast<int>(options_.pp); }
  Program& program(int chunk) { return out_.programs.at(static_cast<std::size_t>(rankOf(chunk))); }
  std::vector<Node>& forwardNodes(int chunk) { return program(chunk).forward[chunk]; }
  std::vector<Node>& backwardNodes(int chunk) { return program(chunk).backward[chunk]; }
  Shape localShape(const Shape& shape, const Layout& layout) const;
  // Without what the degrees of parallelism leave out.
  Layout effective(Layout layout) const;
  // The ranks over which a tensor of this layout is replicated, sharded by ZeRO or added up.
  std::vector<std::string> dataAxes(const Layout& layout) const;
  std::int64_t dataRanks(const Layout& layout) const;
  // How many means of equal weight the mean over the batch is made of.
  std::int64_t means() const { return options_.splits() * options_.cp; }
  std::string fresh(const std::string& name);  // name, name.2, name.3, ... in the model

  ValueId addValue(Value value);
  Tensor& declareLocal(int chunk, const std::string& name, const std::string& logical,
                       const Shape& shape, const Layout& layout, bool perMicrobatch);
  void declareLogical(const std::string& name, const Shape& shape, const std::string& gradOf = "");
  void cutPoint(int chunk, const std::string& local, bool boundary);
  void claim(int chunk, const std::string& local);
  void inputPiece(const std::string& logical, int chunk, const std::string& local);
  Node communication(const std::string& op, const std::string& in, const std::string& out,
                     std::vector<std::string> group);

  std::vector<std::string> reordered(int chunk, std::vector<Node>& nodes, const std::string& from,
                                     int dim, bool toSequence);
  ValueId moved(Kind kind, ValueId from, Value to, Node node, int dim);
  int shardedDimension(const std::string& name, const Shape& shape, const Layout& layout) const;
  bool cutVocabulary(const std::vector<ValueId>& in) const;
  std::string localTensor(const std::string& name, const Shape& shape, const Layout& layout,
                          const std::string& logical = "");
  void cutCrossEntropy(const std::vector<ValueId>& in, const std::string& own,
                       const std::string& name);
  void backwardCutCrossEntropy(const Record& record, const std::string& ownGradient);

  std::string saved(
      int chunk,
      const std::string& local);  // what the backward pass reads in place of a forward tensor
  void recompute(Layer& layer);
  void addGradient(ValueId to, const std::string& logical, const std::string& local);
  std::string localName(const std::string& logical, const Layout& layout) const;
  std::string localGradientName(const std::string& logical, const Layout& layout) const;
  Layout gradientLayout(const Value& value) const;
  void backwardOperator(const Record& record);
  void backwardLoss(const Record& record);
  void backwardCommunication(const Record& record);
  void backwardMove(const Record& record);
  void backwardRingAttention(const Record& record);

  void accumulate(int chunk, const std::string& from, const std::string& to,
                  const std::string& logical, const Shape& shape, Layout layout);
  std::string stepCommunication(Parameter& p, const std::string& op, const std::string& in,
                                const std::string& out, Layout layout,
                                std::vector<std::string> group);
  void totalLoss();
  void reduceGradients();
  void reduceTied();
  void clipGradients();
  void optimizerStep();
  void output(const std::string& logical, int chunk, const std::string& local);
  void model(const std::string& op, std::vector<std::string> in, std::vector<std::string> out,
             std::vector<Attribute> attributes, const std::string& location);
  void step(int chunk, const std::string& op, std::vector<std::string> in,
            std::vector<std::string> out, std::vector<Attribute> attributes,
            const std::string& location);

  Options options_;
  Generated out_;
  std::vector<Value> values_;
  std::vector<Parameter> parameters_;
  std::vector<Record> record_;
  std::vector<Layer> layers_;
  std::map<std::string, int> used_;  // names of the model, how often each base was asked for
  std::map<std::pair<int, std::string>, std::string> saved_;
  std::map<std::string, std::size_t> inputEntries_;  // lineage of what is given, by logical tensor
  std::set<std::pair<int, std::string>>
      claimed_;  // local tensors with a cut point, by pp coordinate
  std::set<std::string> comms_;
  std::vector<std::string> finalGradients_;  // of parameters, in their order: logical, and local
  std::vector<std::string> finalLocalGradients_;
  std::string location_;
  int chunk_ = 0, layer_ = -1, nextComm_ = 0;
};

}  // namespace shardproof::generate
