// SPDX-License-Identifier: Apache-2.0
// SpmdGraph as a Boost graph: the library's own algorithms run on it as it is.
#include "plan/spmd_graph.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <boost/concept/assert.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/graph_concepts.hpp>
#include <boost/graph/graphviz.hpp>
#include <boost/graph/strong_components.hpp>
#include <boost/graph/topological_sort.hpp>

#include "support/problems.h"

namespace shardproof {
namespace {

BOOST_CONCEPT_ASSERT((boost::VertexListGraphConcept<SpmdGraph>));
BOOST_CONCEPT_ASSERT((boost::IncidenceGraphConcept<SpmdGraph>));
BOOST_CONCEPT_ASSERT((boost::EdgeListGraphConcept<SpmdGraph>));

using Vertex = SpmdGraph::Vertex;

std::vector<Vertex> topologicalOrder(const SpmdGraph& graph) {
  std::vector<Vertex> order;
  boost::topological_sort(graph, std::back_inserter(order));
  std::reverse(order.begin(), order.end());
  return order;
}

void expectTopological(const SpmdGraph& graph) {
  const auto order = topologicalOrder(graph);
  ASSERT_EQ(order.size(), num_vertices(graph));
  std::vector<std::size_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  const auto [first, last] = edges(graph);
  for (auto e = first; e != last; ++e)
    EXPECT_LT(place[source(*e, graph)], place[target(*e, graph)]);
}

// Edges in no order, one of them twice; vertex 4 has none.
const SpmdGraph kDiamond(5, {{2, 3}, {0, 2}, {0, 1}, {1, 3}, {0, 1}});

TEST(SpmdGraph, ListsVerticesAndEdges) {
  EXPECT_EQ(num_vertices(kDiamond), 5u);
  EXPECT_EQ(num_edges(kDiamond), 5u);
  EXPECT_EQ(out_degree(0, kDiamond), 3u);
  EXPECT_EQ(out_degree(4, kDiamond), 0u);
  std::vector<std::pair<Vertex, Vertex>> all;
  const auto [first, last] = edges(kDiamond);
  for (auto e = first; e != last; ++e) all.emplace_back(source(*e, kDiamond), target(*e, kDiamond));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::pair<Vertex, Vertex>>{{0, 1}, {0, 1}, {0, 2}, {1, 3}, {2, 3}}));
  const auto [out, end] = out_edges(0, kDiamond);
  EXPECT_EQ(end - out, 3);
  EXPECT_EQ(*(out + 1), (SpmdGraph::Edge{0, target(*(out + 1), kDiamond)}));
}

TEST(SpmdGraph, Empty) {
  const SpmdGraph graph(0, {});
  EXPECT_EQ(num_vertices(graph), 0u);
  EXPECT_TRUE(topologicalOrder(graph).empty());
  EXPECT_EQ(num_vertices(SpmdGraph()), 0u);
}

TEST(SpmdGraph, TopologicalSort) {
  expectTopological(kDiamond);
  const SpmdGraph cycle(2, {{0, 1}, {1, 0}});
  EXPECT_THROW(topologicalOrder(cycle), boost::not_a_dag);
}

TEST(SpmdGraph, BreadthFirstSearch) {
  std::vector<int> distance(5, -1);
  distance[0] = 0;
  const auto record = boost::record_distances(
      boost::make_iterator_property_map(distance.begin(), get(boost::vertex_index, kDiamond)),
      boost::on_tree_edge());
  boost::breadth_first_search(kDiamond, Vertex{0},
                              boost::visitor(boost::make_bfs_visitor(record))
                                  .vertex_index_map(get(boost::vertex_index, kDiamond)));
  EXPECT_EQ(distance, (std::vector<int>{0, 1, 1, 2, -1}));
}

TEST(SpmdGraph, StrongComponents) {
  const SpmdGraph graph(4, {{0, 1}, {1, 2}, {2, 0}, {2, 3}});
  std::vector<int> component(4);
  EXPECT_EQ(
      boost::strong_components(graph, boost::make_iterator_property_map(
                                          component.begin(), get(boost::vertex_index, graph))),
      2);
  EXPECT_EQ(component[0], component[1]);
  EXPECT_EQ(component[0], component[2]);
  EXPECT_NE(component[0], component[3]);
}

TEST(SpmdGraph, WritesGraphviz) {
  std::ostringstream out;
  boost::write_graphviz(out, kDiamond);
  for (const char* line : {"digraph", "0->1", "0->2", "1->3", "2->3", "4;"})
    EXPECT_NE(out.str().find(line), std::string::npos) << line << "\n" << out.str();
}

TEST(SpmdGraph, OfAPlan) {
  const auto problem = test::read(test::pipeline());
  const PlanIndex planIndex(*problem);
  ASSERT_TRUE(planIndex.defects().empty());
  EXPECT_EQ(num_vertices(planIndex.spmdGraph()),
            6u);  // one for each program node; send and receive share one of their two
  expectTopological(planIndex.spmdGraph());
  std::ostringstream out;
  boost::write_graphviz(out, planIndex.spmdGraph());
  EXPECT_NE(out.str().find("->"), std::string::npos);
}

}  // namespace
}  // namespace shardproof
