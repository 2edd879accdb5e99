// SPDX-License-Identifier: Apache-2.0
// Edits of a plan. Nodes are held by handles that stay right while others are inserted; what was
// touched is remembered for the report.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "mutate/document.h"
#include "mutate/plan_graph.h"

namespace shardproof::mutate {

class Editor {
 public:
  explicit Editor(Json& plan) : plan_(plan) {}

  using Handle = std::size_t;
  Handle hold(NodeRef ref);
  std::vector<Handle> hold(const std::vector<NodeRef>& refs);
  NodeRef where(Handle h) const { return held_[h]; }
  Json& node(Handle h);
  Json& touch(Handle h);                 // the node, to be changed
  std::vector<NodeRef> touched() const;  // as they lie after all edits

  // A new node next to one, for the same microbatch; touched.
  Handle insertBefore(Handle h, Json made);
  Handle insertAfter(Handle h, Json made);
  Json& tensors(int program);
  // A new local tensor that is like another one: with `node` for each microbatch exactly if the
  // node runs for microbatches. Asked twice for the same thing, for two microbatches of one line,
  // it is the same tensor.
  std::string fresh(Handle node, const std::string& like, const std::string& suffix,
                    const std::vector<std::int64_t>* shape = nullptr);
  // Turns a communication, or an operator with attributes, into one without partners.
  Json& becomes(Handle h, const std::string& op);

 private:
  Handle insertAt(NodeRef position, Json made);
  void dropWaits(int program, const Json& handle);

  Json& plan_;
  std::vector<NodeRef> held_;
  std::vector<Handle> touched_;
  std::map<std::tuple<int, std::string, std::string>, std::string> fresh_;
};

// The program that runs on exactly the ranks of `program` whose coordinate on each of `axes` (free
// in it) is the last one: the program is split up, an axis at a time. Returns its index; other
// programs may have moved.
int splitOffLast(Json& plan, int program, const std::vector<std::string>& axes);
// Writes out a free axis of a program: one program for each coordinate, in the place of the one.
// Returns the first's index. Throws std::length_error if that would take too much memory.
int splitAxis(Json& plan, int program, const std::string& axis);
// The node of each microbatch in the place of one that runs for all ("*"); returns their handles by
// microbatch. A node that names its microbatch is left. Throws as splitAxis does.
std::vector<Editor::Handle> splitMicrobatches(Json& plan, Editor& editor, Editor::Handle h);

}  // namespace shardproof::mutate
