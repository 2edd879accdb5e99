// SPDX-License-Identifier: Apache-2.0
// The indexed plan as a directed graph over program nodes, each with all its SPMD instances: one
// vertex per program node (nodes that meet in a communication share one), one edge per data
// dependency. Flat arrays with Boost.Graph traits, so BGL's algorithms run on it without a copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <boost/graph/graph_traits.hpp>
#include <boost/graph/properties.hpp>
#include <boost/iterator/counting_iterator.hpp>
#include <boost/iterator/iterator_facade.hpp>
#include <boost/property_map/property_map.hpp>

namespace shardproof {

class SpmdGraph {
 public:
  using Vertex = std::uint32_t;
  struct Edge {
    Vertex source, target;
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  SpmdGraph() = default;
  // Edges in any order, duplicates allowed.
  SpmdGraph(std::size_t vertices, const std::vector<std::pair<Vertex, Vertex>>& edges)
      : offsets_(vertices + 1, 0) {
    for (const auto& [s, t] : edges) ++offsets_[s + 1];
    for (std::size_t v = 0; v < vertices; ++v) offsets_[v + 1] += offsets_[v];
    targets_.resize(edges.size());
    std::vector<std::uint64_t> next(offsets_.begin(), offsets_.end() - 1);
    for (const auto& [s, t] : edges) targets_[next[s]++] = t;
  }
  std::size_t vertexCount() const { return offsets_.empty() ? 0 : offsets_.size() - 1; }
  std::size_t edgeCount() const { return targets_.size(); }
  std::uint64_t firstOut(Vertex v) const { return offsets_[v]; }
  std::uint64_t lastOut(Vertex v) const { return offsets_[v + 1]; }
  Vertex targetAt(std::uint64_t e) const { return targets_[e]; }
  Vertex sourceAt(std::uint64_t e) const {
    return static_cast<Vertex>(std::upper_bound(offsets_.begin(), offsets_.end(), e) -
                               offsets_.begin() - 1);
  }

 private:
  std::vector<std::uint64_t> offsets_;
  std::vector<Vertex> targets_;
};

class SpmdOutEdgeIterator
    : public boost::iterator_facade<SpmdOutEdgeIterator, SpmdGraph::Edge,
                                    boost::random_access_traversal_tag, SpmdGraph::Edge> {
 public:
  SpmdOutEdgeIterator() = default;
  SpmdOutEdgeIterator(const SpmdGraph& graph, SpmdGraph::Vertex source, std::uint64_t position)
      : graph_(&graph), source_(source), position_(position) {}

 private:
  friend class boost::iterator_core_access;
  SpmdGraph::Edge dereference() const { return {source_, graph_->targetAt(position_)}; }
  bool equal(const SpmdOutEdgeIterator& o) const { return position_ == o.position_; }
  void increment() { ++position_; }
  void decrement() { --position_; }
  void advance(std::ptrdiff_t n) {
    position_ = static_cast<std::uint64_t>(static_cast<std::ptrdiff_t>(position_) + n);
  }
  std::ptrdiff_t distance_to(const SpmdOutEdgeIterator& o) const {
    return static_cast<std::ptrdiff_t>(o.position_) - static_cast<std::ptrdiff_t>(position_);
  }
  const SpmdGraph* graph_ = nullptr;
  SpmdGraph::Vertex source_ = 0;
  std::uint64_t position_ = 0;
};

// All edges, by position: sources are looked up, which only printing needs.
class SpmdEdgeIterator
    : public boost::iterator_facade<SpmdEdgeIterator, SpmdGraph::Edge, boost::forward_traversal_tag,
                                    SpmdGraph::Edge> {
 public:
  SpmdEdgeIterator() = default;
  SpmdEdgeIterator(const SpmdGraph& graph, std::uint64_t position)
      : graph_(&graph), position_(position) {}

 private:
  friend class boost::iterator_core_access;
  SpmdGraph::Edge dereference() const {
    return {graph_->sourceAt(position_), graph_->targetAt(position_)};
  }
  bool equal(const SpmdEdgeIterator& o) const { return position_ == o.position_; }
  void increment() { ++position_; }
  const SpmdGraph* graph_ = nullptr;
  std::uint64_t position_ = 0;
};

struct SpmdGraphTraversal : boost::vertex_list_graph_tag,
                            boost::incidence_graph_tag,
                            boost::edge_list_graph_tag {};

}  // namespace shardproof

template <>
struct boost::graph_traits<shardproof::SpmdGraph> {
  using vertex_descriptor = shardproof::SpmdGraph::Vertex;
  using edge_descriptor = shardproof::SpmdGraph::Edge;
  using directed_category = boost::directed_tag;
  using edge_parallel_category = boost::allow_parallel_edge_tag;
  using traversal_category = shardproof::SpmdGraphTraversal;
  using vertex_iterator = boost::counting_iterator<vertex_descriptor>;
  using out_edge_iterator = shardproof::SpmdOutEdgeIterator;
  using edge_iterator = shardproof::SpmdEdgeIterator;
  using vertices_size_type = std::size_t;
  using edges_size_type = std::size_t;
  using degree_size_type = std::size_t;
  static vertex_descriptor null_vertex() { return static_cast<vertex_descriptor>(-1); }
};

namespace shardproof {

inline std::pair<boost::counting_iterator<SpmdGraph::Vertex>,
                 boost::counting_iterator<SpmdGraph::Vertex>>
vertices(const SpmdGraph& g) {
  return {
      boost::counting_iterator<SpmdGraph::Vertex>(0),
      boost::counting_iterator<SpmdGraph::Vertex>(static_cast<SpmdGraph::Vertex>(g.vertexCount()))};
}
inline std::size_t num_vertices(const SpmdGraph& g) { return g.vertexCount(); }
inline std::pair<SpmdEdgeIterator, SpmdEdgeIterator> edges(const SpmdGraph& g) {
  return {SpmdEdgeIterator(g, 0), SpmdEdgeIterator(g, g.edgeCount())};
}
inline std::size_t num_edges(const SpmdGraph& g) { return g.edgeCount(); }
inline std::pair<SpmdOutEdgeIterator, SpmdOutEdgeIterator> out_edges(SpmdGraph::Vertex v,
                                                                     const SpmdGraph& g) {
  return {SpmdOutEdgeIterator(g, v, g.firstOut(v)), SpmdOutEdgeIterator(g, v, g.lastOut(v))};
}
inline std::size_t out_degree(SpmdGraph::Vertex v, const SpmdGraph& g) {
  return g.lastOut(v) - g.firstOut(v);
}
inline SpmdGraph::Vertex source(const SpmdGraph::Edge& e, const SpmdGraph&) { return e.source; }
inline SpmdGraph::Vertex target(const SpmdGraph::Edge& e, const SpmdGraph&) { return e.target; }
using SpmdIndexMap = boost::typed_identity_property_map<SpmdGraph::Vertex>;
inline SpmdIndexMap get(boost::vertex_index_t, const SpmdGraph&) { return {}; }

}  // namespace shardproof

template <>
struct boost::property_map<shardproof::SpmdGraph, boost::vertex_index_t> {
  using type = shardproof::SpmdIndexMap;
  using const_type = shardproof::SpmdIndexMap;
};
