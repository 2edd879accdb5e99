// SPDX-License-Identifier: Apache-2.0
// Devices that share a lowering have the same nodes, of which some have attributes of their own.
// Where these are affine in the coordinates of the mesh the devices share a program too, with a
// "step"; where they are not, there is a program for each choice of them.
#include "reader/hlo/programs.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "util/index.h"

namespace shardproof::hlo {

namespace {

// The whole numbers in an attribute's text, in order; nothing where there is something else.
std::optional<Sizes> wholeNumbers(const std::string& text) {
  Sizes numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (*at == '[' || *at == ']' || *at == ',' || *at == ' ') {
      ++at;
      continue;
    }
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return std::nullopt;
    numbers.push_back(number);
    at = next;
  }
  return numbers;
}

std::string likeText(const std::string& text, const Sizes& numbers) {
  return text.starts_with("[") ? listJson(numbers) : std::to_string(numbers.at(0));
}

// Attributes that are `base` where all coordinates are 0, and what each coordinate adds.
struct Affine {
  NodeAttributes base;
  std::string step;  // JSON; empty: nothing moves
};

class Fit {
 public:
  Fit(const DeviceMesh& mesh, const std::map<std::int64_t, NodeAttributes>& ofDevice)
      : mesh_(mesh), ofDevice_(ofDevice) {}

  // Nothing where the attributes of these devices are not affine.
  std::optional<Affine> of(const std::vector<std::int64_t>& devices) {
    const NodeAttributes& first = ofDevice_.at(devices.front());
    Affine made{first, {}};
    std::vector<std::string> steps(mesh_.axes());  // of each axis
    for (std::size_t a = 0; a < first.size(); ++a) {
      const auto& [key, text] = first[a];
      if (std::all_of(devices.begin(), devices.end(), [&, &own = text](std::int64_t d) {
            return ofDevice_.at(d).at(a).second == own;
          }))
        continue;
      const auto fitted = fit(devices, a);
      if (!fitted) return std::nullopt;
      made.base[a].second = likeText(text, fitted->first);
      for (std::size_t axis = 0; axis < mesh_.axes(); ++axis) {
        const Sizes& by = fitted->second[axis];
        if (std::all_of(by.begin(), by.end(), [](std::int64_t b) { return b == 0; })) continue;
        steps[axis] +=
            (steps[axis].empty() ? "" : ", ") + quotedJson(key) + ": " + likeText(text, by);
      }
    }
    for (std::size_t axis = 0; axis < steps.size(); ++axis) {
      if (steps[axis].empty()) continue;
      made.step += (made.step.empty() ? "{" : ", ") + quotedJson(mesh_.axisName(axis)) + ": {" +
                   steps[axis] + "}";
    }
    if (!made.step.empty()) made.step += "}";
    return made;
  }

 private:
  // The numbers where all coordinates are 0, and what each axis adds to them.
  std::optional<std::pair<Sizes, std::vector<Sizes>>> fit(const std::vector<std::int64_t>& devices,
                                                          std::size_t attribute) const {
    std::map<std::int64_t, Sizes> numbers;
    for (const std::int64_t d : devices) {
      auto found = wholeNumbers(ofDevice_.at(d).at(attribute).second);
      if (!found || (!numbers.empty() && found->size() != numbers.begin()->second.size()))
        return std::nullopt;
      numbers.emplace(d, std::move(*found));
    }
    const std::int64_t first = devices.front();
    Sizes base = numbers.at(first);
    std::vector<Sizes> steps(mesh_.axes(), Sizes(base.size(), 0));
    for (std::size_t axis = 0; axis < mesh_.axes(); ++axis) {
      const auto neighbour = std::find_if(devices.begin(), devices.end(), [&](std::int64_t d) {
        return alongOnly(first, d, axis);
      });
      if (neighbour == devices.end()) continue;
      const std::int64_t distance =
          mesh_.coordinate(*neighbour, axis) - mesh_.coordinate(first, axis);
      for (std::size_t i = 0; i < base.size(); ++i) {
        const std::int64_t difference = numbers.at(*neighbour)[i] - numbers.at(first)[i];
        if (difference % distance != 0) return std::nullopt;
        steps[axis][i] = difference / distance;
      }
    }
    const auto moved = [&](std::int64_t d, std::size_t i) {
      std::int64_t sum = 0;
      for (std::size_t axis = 0; axis < mesh_.axes(); ++axis)
        sum += steps[axis][i] * mesh_.coordinate(d, axis);
      return sum;
    };
    for (std::size_t i = 0; i < base.size(); ++i) base[i] -= moved(first, i);
    for (const auto& [d, own] : numbers)
      for (std::size_t i = 0; i < base.size(); ++i)
        if (own[i] != base[i] + moved(d, i)) return std::nullopt;
    return std::pair(std::move(base), std::move(steps));
  }

  // Whether devices differ in their place on this axis, and on no other.
  bool alongOnly(std::int64_t a, std::int64_t b, std::size_t axis) const {
    for (std::size_t other = 0; other < mesh_.axes(); ++other)
      if ((mesh_.coordinate(a, other) != mesh_.coordinate(b, other)) != (other == axis))
        return false;
    return true;
  }

  const DeviceMesh& mesh_;
  const std::map<std::int64_t, NodeAttributes>& ofDevice_;
};

// A text for each device, by number, of those that share a lowering.
class Texts {
 public:
  Texts(const DeviceMesh& mesh, std::vector<std::size_t>& ofDevice)
      : mesh_(mesh), ofDevice_(ofDevice) {}

  void add(Graph& graph, const std::vector<std::int64_t>& devices) {
    std::vector<std::size_t> own;  // nodes whose attributes are no affine ones
    std::map<std::size_t, Affine> affine;
    for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
      const GraphNode& node = graph.nodes()[n];
      if (node.ofDevice.empty()) continue;
      if (auto fitted = Fit(mesh_, node.ofDevice).of(devices))
        affine.emplace(n, std::move(*fitted));
      else own.push_back(n);
    }
    std::map<std::vector<NodeAttributes>, std::vector<std::int64_t>> choices;
    for (const std::int64_t d : devices) {
      std::vector<NodeAttributes> attributes;
      for (const std::size_t n : own) attributes.push_back(graph.nodes()[n].ofDevice.at(d));
      choices[std::move(attributes)].push_back(d);
    }
    for (const auto& [n, fitted] : affine) graph.setAttributes(n, fitted.base, fitted.step);
    for (const auto& [attributes, those] : choices) {
      for (std::size_t k = 0; k < own.size(); ++k) graph.setAttributes(own[k], attributes[k], {});
      const auto [text, isNew] = numbers_.emplace(graph.json(), kinds_.size());
      if (isNew) kinds_.push_back(&text->first);
      for (const std::int64_t d : those) ofDevice_[at(d)] = text->second;
    }
  }

  const std::string& text(std::size_t number) const { return *kinds_[number]; }

 private:
  const DeviceMesh& mesh_;
  std::vector<std::size_t>& ofDevice_;
  std::map<std::string, std::size_t> numbers_;
  std::vector<const std::string*> kinds_;
};

// The axes that tell programs apart: what another coordinate on one of them alone changes.
std::vector<std::size_t> axesThatMatter(const DeviceMesh& mesh,
                                        const std::vector<std::size_t>& texts) {
  std::vector<std::size_t> matter;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    std::map<std::vector<std::int64_t>, std::size_t> first;
    bool differs = false;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      std::vector<std::int64_t> others;
      for (std::size_t b = 0; b < mesh.axes(); ++b)
        others.push_back(b == a ? 0 : mesh.coordinate(static_cast<std::int64_t>(r), b));
      const auto [it, added] = first.emplace(std::move(others), r);
      differs = differs || (!added && texts[r] != texts[it->second]);
    }
    if (differs) matter.push_back(a);
  }
  return matter;
}

}  // namespace

std::string programsJson(const DeviceMesh& mesh,
                         const std::vector<std::shared_ptr<Lowering>>& ofDevice,
                         const std::set<std::string>& wanted) {
  std::map<Lowering*, std::vector<std::int64_t>> sharing;
  std::vector<Lowering*> order;
  for (std::size_t d = 0; d < ofDevice.size(); ++d) {
    auto& devices = sharing[ofDevice[d].get()];
    if (devices.empty()) order.push_back(ofDevice[d].get());
    devices.push_back(static_cast<std::int64_t>(d));
  }
  std::vector<std::size_t> number(ofDevice.size());
  Texts texts(mesh, number);
  for (Lowering* lowering : order) {
    std::set<std::string> needed = wanted;
    for (const Lowering::Port& p : lowering->results) needed.insert(p.name);
    lowering->graph.keepOnly(needed);
    texts.add(lowering->graph, sharing[lowering]);
    lowering->graph = Graph();  // there may be many
  }
  const std::vector<std::size_t> matter = axesThatMatter(mesh, number);
  std::string out;
  std::set<std::string> done;
  for (std::size_t d = 0; d < number.size(); ++d) {
    const std::string at = mesh.coordinatesOf(static_cast<std::int64_t>(d), matter);
    if (!done.insert(at).second) continue;
    out += (out.empty() ? "{" : ",\n{") + (matter.empty() ? "" : "\"at\": " + at + ", ");
    out += texts.text(number[d]) + "}";
  }
  return out;
}

}  // namespace shardproof::hlo
