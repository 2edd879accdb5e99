// SPDX-License-Identifier: Apache-2.0
// A generated problem before it is written: the logical model, one program for each pipeline rank,
// and the lineage. Only what the generator needs of the format (docs/format.md); the reader checks
// what is written like any other input.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace shardproof::generate {

using Shape = std::vector<std::int64_t>;

// How a local tensor lies in its logical one. Every axis that is not mentioned replicates it.
struct Layout {
  int batch = -1;  // the dimension cut over dp and, within a dp rank, over microbatches
  int cp = -1;     // the dimension cut over cp, the sequence; it may be `batch` where one dimension
                // has the tokens of all sequences, of which a microbatch has one. With `tp` on the
                // same dimension cp cuts first
  int tp = -1;       // the dimension cut over tp
  int copies = 1;    // this many neighbouring tp ranks hold the same piece of `tp` (replicated
                     // key-value heads)
  int tpInner = -1;  // with copies: the dimension that these ranks cut among themselves
  int ep = -1;  // the dimension cut over ep: a rank's experts. With `tp` on the same dimension ep
                // cuts first. Such a tensor is cut and added up over edp in place of all of dp
  int dp =
      -1;  // the dimension cut over dp within what tp leaves (ZeRO); never together with `batch`
  bool gathered = false;  // `batch` is not cut over ep: each rank has the rows of its ep group
  bool sumTp =
      false;  // logical = sum over tp of local; with copies: over those that hold one piece
  bool sumEp = false;
  bool sumCp = false;
  bool sumDp = false;  // over cp, too
  bool sumMb = false;
};

struct Attribute {
  std::string key = {};
  std::string json = {};                         // the value as JSON; with `perTp`, ... an integer
  std::int64_t perTp = 0, perEp = 0, perCp = 0;  // added for each tp (ep, cp) coordinate
  bool shape = false;  // the value is the first result's shape instead (view, expand)
};

struct Tensor {
  std::string name = {};
  Shape shape = {};
  std::string kind = {};   // empty: produced
  std::string dtype = {};  // empty: float32
  std::string value = {};  // of constants
  std::string gradOf = {};
  bool perMicrobatch = false;
  // Of local tensors: what it holds a part of (empty: nothing that the model has).
  std::string logical = {};
  Layout layout = {};
};

enum class Runs { kOnce, kEach };  // once, or for each microbatch

struct Node {
  std::string op = {};
  std::vector<std::string> in = {}, out = {};  // "": absent
  std::vector<Attribute> attributes = {};
  std::string location = {};
  Runs runs = Runs::kEach;
  // Communication.
  std::string comm = {};
  std::vector<std::string> group = {};  // mesh axes; or one of
  std::vector<int> stages = {};  // the ranks with these pp coordinates and otherwise this rank's
  int neighbours = 0;            // the tp ranks that hold copies of one piece
  std::string pairs = {};        // of a collective_permute, as JSON
  std::string peerField = {};    // "to", "from"
  int peer = 0;                  // its pp coordinate
  std::optional<int> cp = {};    // only the ranks with this cp coordinate run it
};

// Adds up one tensor over the microbatches.
struct Accumulation {
  std::string from = {}, to = {};  // `from` exists for each microbatch
  std::string location = {};
  int chunk = 0;
};

class Tensors {
 public:
  Tensor& add(Tensor tensor);  // throws std::logic_error if the name is taken
  Tensor* find(const std::string& name);
  const Tensor& at(const std::string& name) const { return list_.at(index_.at(name)); }
  const std::vector<Tensor>& list() const { return list_; }

 private:
  std::vector<Tensor> list_ = {};
  std::unordered_map<std::string, std::size_t> index_ = {};
};

// What one pipeline rank runs. A chunk is a run of layers; a rank has one, or several when the
// schedule is interleaved.
struct Program {
  Tensors tensors = {};
  std::map<int, std::vector<Node>> forward = {}, backward = {};  // by chunk
  std::vector<Accumulation> accumulations = {};
  std::vector<Node> step = {};  // once, after the last microbatch
};

struct Piece {  // one shard of one lineage entry
  std::string local = {};
  int rank = 0;  // pp coordinate
};
struct Lineage {
  std::string logical = {}, role = {};
  std::vector<Piece> pieces = {};
};

struct Generated {
  Tensors tensors = {};  // of the model
  std::vector<Node> nodes = {};
  std::vector<std::string> outputs = {};
  std::vector<Program> programs = {};  // by pp coordinate
  std::vector<Lineage> lineage = {};
};

}  // namespace shardproof::generate
