// The joined plan as a directed graph over families: one vertex per program node (nodes that meet
// in a communication share one), one edge per data dependency. Flat arrays with Boost.Graph traits,
// so BGL's algorithms run on it without a copy.
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

class FamilyGraph {
 public:
  using Vertex = std::uint32_t;
  struct Edge {
    Vertex source, target;
    friend bool operator==(const Edge&, const Edge&) = default;
  };
  FamilyGraph() = default;
  // Edges in any order, duplicates allowed.
  FamilyGraph(std::size_t vertices, const std::vector<std::pair<Vertex, Vertex>>& edges)
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

class FamilyOutEdgeIterator
    : public boost::iterator_facade<FamilyOutEdgeIterator, FamilyGraph::Edge,
                                    boost::random_access_traversal_tag, FamilyGraph::Edge> {
 public:
  FamilyOutEdgeIterator() = default;
  FamilyOutEdgeIterator(const FamilyGraph& graph, FamilyGraph::Vertex source,
                        std::uint64_t position)
      : graph_(&graph), source_(source), position_(position) {}

 private:
  friend class boost::iterator_core_access;
  FamilyGraph::Edge dereference() const { return {source_, graph_->targetAt(position_)}; }
  bool equal(const FamilyOutEdgeIterator& o) const { return position_ == o.position_; }
  void increment() { ++position_; }
  void decrement() { --position_; }
  void advance(std::ptrdiff_t n) {
    position_ = static_cast<std::uint64_t>(static_cast<std::ptrdiff_t>(position_) + n);
  }
  std::ptrdiff_t distance_to(const FamilyOutEdgeIterator& o) const {
    return static_cast<std::ptrdiff_t>(o.position_) - static_cast<std::ptrdiff_t>(position_);
  }
  const FamilyGraph* graph_ = nullptr;
  FamilyGraph::Vertex source_ = 0;
  std::uint64_t position_ = 0;
};

// All edges, by position: sources are looked up, which only printing needs.
class FamilyEdgeIterator
    : public boost::iterator_facade<FamilyEdgeIterator, FamilyGraph::Edge,
                                    boost::forward_traversal_tag, FamilyGraph::Edge> {
 public:
  FamilyEdgeIterator() = default;
  FamilyEdgeIterator(const FamilyGraph& graph, std::uint64_t position)
      : graph_(&graph), position_(position) {}

 private:
  friend class boost::iterator_core_access;
  FamilyGraph::Edge dereference() const {
    return {graph_->sourceAt(position_), graph_->targetAt(position_)};
  }
  bool equal(const FamilyEdgeIterator& o) const { return position_ == o.position_; }
  void increment() { ++position_; }
  const FamilyGraph* graph_ = nullptr;
  std::uint64_t position_ = 0;
};

struct FamilyGraphTraversal : boost::vertex_list_graph_tag,
                              boost::incidence_graph_tag,
                              boost::edge_list_graph_tag {};

}  // namespace shardproof

template <>
struct boost::graph_traits<shardproof::FamilyGraph> {
  using vertex_descriptor = shardproof::FamilyGraph::Vertex;
  using edge_descriptor = shardproof::FamilyGraph::Edge;
  using directed_category = boost::directed_tag;
  using edge_parallel_category = boost::allow_parallel_edge_tag;
  using traversal_category = shardproof::FamilyGraphTraversal;
  using vertex_iterator = boost::counting_iterator<vertex_descriptor>;
  using out_edge_iterator = shardproof::FamilyOutEdgeIterator;
  using edge_iterator = shardproof::FamilyEdgeIterator;
  using vertices_size_type = std::size_t;
  using edges_size_type = std::size_t;
  using degree_size_type = std::size_t;
  static vertex_descriptor null_vertex() { return static_cast<vertex_descriptor>(-1); }
};

namespace shardproof {

inline std::pair<boost::counting_iterator<FamilyGraph::Vertex>,
                 boost::counting_iterator<FamilyGraph::Vertex>>
vertices(const FamilyGraph& g) {
  return {boost::counting_iterator<FamilyGraph::Vertex>(0),
          boost::counting_iterator<FamilyGraph::Vertex>(
              static_cast<FamilyGraph::Vertex>(g.vertexCount()))};
}
inline std::size_t num_vertices(const FamilyGraph& g) { return g.vertexCount(); }
inline std::pair<FamilyEdgeIterator, FamilyEdgeIterator> edges(const FamilyGraph& g) {
  return {FamilyEdgeIterator(g, 0), FamilyEdgeIterator(g, g.edgeCount())};
}
inline std::size_t num_edges(const FamilyGraph& g) { return g.edgeCount(); }
inline std::pair<FamilyOutEdgeIterator, FamilyOutEdgeIterator> out_edges(FamilyGraph::Vertex v,
                                                                         const FamilyGraph& g) {
  return {FamilyOutEdgeIterator(g, v, g.firstOut(v)), FamilyOutEdgeIterator(g, v, g.lastOut(v))};
}
inline std::size_t out_degree(FamilyGraph::Vertex v, const FamilyGraph& g) {
  return g.lastOut(v) - g.firstOut(v);
}
inline FamilyGraph::Vertex source(const FamilyGraph::Edge& e, const FamilyGraph&) {
  return e.source;
}
inline FamilyGraph::Vertex target(const FamilyGraph::Edge& e, const FamilyGraph&) {
  return e.target;
}
using FamilyIndexMap = boost::typed_identity_property_map<FamilyGraph::Vertex>;
inline FamilyIndexMap get(boost::vertex_index_t, const FamilyGraph&) { return {}; }

}  // namespace shardproof

template <>
struct boost::property_map<shardproof::FamilyGraph, boost::vertex_index_t> {
  using type = shardproof::FamilyIndexMap;
  using const_type = shardproof::FamilyIndexMap;
};
