// SPDX-License-Identifier: Apache-2.0
#include "compare/trace.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "compare/described_arrays.h"
#include "compare/safetensors.h"
#include "compare/sketch.h"
#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "shardproof-trace 1";
constexpr std::size_t kMostParts = 1U << 20;
constexpr std::int64_t kMostWorld = 1 << 20;  // ranks, as in plans

constexpr std::array<const char*, kKindCount> kKinds = {
    "batch",           "initial",        "input",     "output",
    "output gradient", "input gradient", "result",    "unclipped gradient",
    "gradient",        "state",          "optimizer", "parameter",
    "buffer",          "main gradient",  "main copy"};

constexpr std::string_view kDescription = ".trace.json";
constexpr std::array kReplaced = {"declared", "numbers", "shape"};

// Reads the description of the tensors of one file. `place` is where in the file it is.
class FileReader {
 public:
  FileReader(Trace& trace, const TensorFile& file) : trace_(trace), file_(file) {}

  std::int64_t read() {
    const auto& metadata = file_.metadata();
    const auto format = metadata.find("format");
    if (format == metadata.end() || format->second != kFormat)
      fail("header/__metadata__/format",
           (format == metadata.end() ? std::string("is missing") : "found " + format->second) +
               ", expected " + kFormat + ": a file that shardproof.torch.trace has written");
    const auto text = metadata.find("trace");
    if (text == metadata.end()) fail("header/__metadata__/trace", "is missing");
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(text->second);
    } catch (const nlohmann::json::exception& error) {
      fail("header/__metadata__/trace", std::string("is no JSON: ") + error.what());
    }
    if (!json.is_object()) fail("header/__metadata__/trace", "expected a JSON object");
    readMesh(json);
    const std::int64_t rank = integer(member(json, "rank", "trace"), "trace/rank");
    if (rank >= trace_.world)
      fail("trace/rank", "found " + std::to_string(rank) + ", expected a rank below " +
                             std::to_string(trace_.world) + ", the size of the mesh");
    if (json.contains("notes") && json["notes"].is_array())
      for (const nlohmann::json& note : json["notes"])
        if (note.is_string() &&
            std::find(trace_.notes.begin(), trace_.notes.end(), note) == trace_.notes.end())
          trace_.notes.push_back(note.get<std::string>());
    if (json.contains("only") && json["only"].is_array() && !json["only"].empty())
      trace_.partial = true;
    if (json.contains("isolated")) trace_.isolated |= json["isolated"] == true;
    const nlohmann::json& tensors = member(json, "tensors", "trace");
    if (!tensors.is_object()) fail("trace/tensors", "expected an object");
    for (const auto& [key, value] : tensors.items()) readTensor(key, value, rank);
    for (const auto& [key, stored] : file_.tensors())
      if (!tensors.contains(key))
        fail("header/" + key, "is not described in trace/tensors of the metadata");
    return rank;
  }

 private:
  [[noreturn]] void fail(const std::string& place, const std::string& message) const {
    throw InputError(file_.path(), place, message);
  }

  const nlohmann::json& member(const nlohmann::json& json, const char* key,
                               const std::string& place) const {
    if (!json.is_object() || !json.contains(key)) fail(place, std::string(key) + " is missing");
    return json[key];
  }

  std::int64_t integer(const nlohmann::json& value, const std::string& place) const {
    if (!value.is_number_integer() || value < 0 || value > (std::int64_t{1} << 62))
      fail(place, "found " + value.dump() + ", expected an integer that is not negative");
    return value.get<std::int64_t>();
  }

  std::vector<std::int64_t> integers(const nlohmann::json& value, const std::string& place) const {
    if (!value.is_array()) fail(place, "found " + value.dump() + ", expected a list of integers");
    std::vector<std::int64_t> list;
    for (const nlohmann::json& n : value) list.push_back(integer(n, place));
    return list;
  }

  std::string text(const nlohmann::json& value, const std::string& place) const {
    if (!value.is_string()) fail(place, "found " + value.dump() + ", expected a string");
    return value.get<std::string>();
  }

  void readMesh(const nlohmann::json& json) {
    std::vector<Axis> mesh;
    std::int64_t world = 1;
    const nlohmann::json& value = member(json, "mesh", "trace");
    if (!value.is_array()) fail("trace/mesh", "expected a list of [axis, size]");
    for (const nlohmann::json& axis : value) {
      if (!axis.is_array() || axis.size() != 2)
        fail("trace/mesh", "found " + axis.dump() + ", expected [axis, size]");
      mesh.push_back({text(axis[0], "trace/mesh"), integer(axis[1], "trace/mesh")});
      const std::int64_t size = mesh.back().size;
      if (size < 1 || size > kMostWorld || (world *= size) > kMostWorld)
        fail("trace/mesh", "expected sizes of at least 1, and at most 2^20 ranks");
    }
    const auto same = [](const Axis& a, const Axis& b) {
      return a.name == b.name && a.size == b.size;
    };
    if (trace_.files.size() > 1 &&
        !std::equal(mesh.begin(), mesh.end(), trace_.mesh.begin(), trace_.mesh.end(), same))
      fail("trace/mesh", "found " + value.dump() + ", which is not the mesh of " +
                             trace_.files.front()->path() +
                             ": the directory has traces of several runs");
    trace_.mesh = std::move(mesh);
    trace_.world = world;
  }

  std::vector<std::size_t> axes(const nlohmann::json& json, const char* key,
                                const std::string& place) const {
    std::vector<std::size_t> found;
    if (!json.contains(key)) return found;
    if (!json[key].is_array()) fail(place + "/" + key, "expected a list of axes");
    for (const nlohmann::json& name : json[key]) {
      const std::string wanted = text(name, place + "/" + key);
      const auto at = std::find_if(trace_.mesh.begin(), trace_.mesh.end(),
                                   [&](const Axis& axis) { return axis.name == wanted; });
      if (at == trace_.mesh.end())
        fail(place + "/" + key, "found the axis " + wanted + ", which the mesh does not have");
      found.push_back(static_cast<std::size_t>(at - trace_.mesh.begin()));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  void readTensor(const std::string& key, const nlohmann::json& json, std::int64_t rank) {
    const std::string place = "trace/tensors/" + key;
    const auto stored = file_.tensors().find(key);
    if (stored == file_.tensors().end()) fail(place, "has no elements in the file");
    const std::string name = text(member(json, "name", place), place + "/name");
    const std::string kind = text(member(json, "kind", place), place + "/kind");
    const auto known = std::find(kKinds.begin(), kKinds.end(), kind);
    if (known == kKinds.end())
      fail(place + "/kind", "found " + kind + ", expected one of those of docs/numbers.md");
    Piece piece;
    piece.file = &file_;
    piece.key = key;
    piece.stored = &stored->second;
    piece.rank = rank;
    if (json.contains("call")) piece.call = integer(json["call"], place + "/call");
    if (piece.call >= kMostWorld) fail(place + "/call", "expected less than 2^20 calls");
    piece.order = integer(member(json, "order", place), place + "/order");
    piece.shape =
        json.contains("shape") ? integers(json["shape"], place + "/shape") : stored->second.shape;
    if (!elementsOf(piece.shape, kMostElements))
      fail(place + "/shape", "expected at most 2^40 elements");
    piece.dtype = stored->second.dtype;
    if (json.contains("sketch")) readSketch(json, place, piece);
    readParts(json, place, piece);
    piece.sum = axes(json, "sum", place);
    piece.mean = axes(json, "mean", place);
    piece.unknown = axes(json, "unknown", place);
    if (json.contains("replaced")) {
      const std::string how = text(json["replaced"], place + "/replaced");
      const auto at = std::find(kReplaced.begin(), kReplaced.end(), how);
      if (at == kReplaced.end())
        fail(place + "/replaced", "found " + how + ", expected declared, numbers or shape");
      piece.replaced = static_cast<Replaced>(at - kReplaced.begin() + 1);
      trace_.isolated = true;
    }
    std::erase_if(piece.unknown, [&](std::size_t a) { return trace_.mesh[a].size == 1; });
    Tensor& tensor = trace_.tensors[name];
    const std::string like =
        json.contains("like") ? text(json["like"], place + "/like") : std::string();
    if (tensor.pieces.empty()) {
      tensor.kind = static_cast<Kind>(known - kKinds.begin());
      tensor.like = like;
      tensor.module = json.contains("module") ? text(json["module"], place + "/module") : "";
      tensor.order = piece.order;
    } else if (tensor.kind != static_cast<Kind>(known - kKinds.begin()) || tensor.like != like ||
               tensor.unknown() != piece.unknown) {
      fail(place, "kind, like or unknown are not those of " + name + " in " +
                      tensor.pieces.front().file->path());
    }
    for (const Piece& other : tensor.pieces)
      if (other.rank == rank && other.call == piece.call)
        fail(place, name + " of rank " + std::to_string(rank) + " and call " +
                        std::to_string(piece.call) + " is also in " + other.file->path());
    tensor.changed |= !json.contains("changed") || json["changed"] != false;
    tensor.order = std::min(tensor.order, piece.order);
    tensor.pieces.push_back(std::move(piece));
  }

  void readSketch(const nlohmann::json& json, const std::string& place, Piece& piece) const {
    const std::string name = text(json["sketch"], place + "/sketch");
    const std::optional<Dtype> dtype = dtypeNamed(name);
    if (!dtype) fail(place + "/sketch", "found " + name + ", expected a dtype as F32");
    if (!json.contains("shape"))
      fail(place + "/shape", "is missing, and the elements are a sketch");
    if (piece.stored->dtype != Dtype::kF64 || piece.stored->count != kBuckets)
      fail(place + "/sketch", "expected " + std::to_string(kBuckets) + " sums of dtype F64");
    piece.dtype = *dtype;
    piece.isSketch = true;
  }

  void readParts(const nlohmann::json& json, const std::string& place, Piece& piece) const {
    const std::size_t count = piece.isSketch ? kMostElements : piece.stored->count;
    if (!json.contains("parts")) {
      if (!piece.isSketch && elementsOf(piece.shape, kMostElements) != count)
        fail(place + "/shape", "has not as many elements as the local tensor: parts are missing");
      piece.parts.push_back({0, std::vector<std::int64_t>(piece.shape.size(), 0), piece.shape});
      return;
    }
    const nlohmann::json& parts = json["parts"];
    const std::string at = place + "/parts";
    if (!parts.is_array() || parts.size() > kMostParts)
      fail(at, "expected a list of [first element, low, size]");
    for (const nlohmann::json& value : parts) {
      if (!value.is_array() || value.size() != 3)
        fail(at, "found " + value.dump() + ", expected [first element, low, size]");
      Part part{static_cast<std::size_t>(integer(value[0], at)), integers(value[1], at),
                integers(value[2], at)};
      if (part.low.size() != piece.shape.size() || part.size.size() != piece.shape.size())
        fail(at, "found " + value.dump() + ", expected low and size of " +
                     std::to_string(piece.shape.size()) + " dimensions");
      for (std::size_t d = 0; d < piece.shape.size(); ++d)
        if (part.low[d] > piece.shape[d] || part.size[d] > piece.shape[d] - part.low[d])
          fail(at, "found " + value.dump() + ", which is outside of the whole tensor of shape " +
                       nlohmann::json(piece.shape).dump());
      const auto elements = elementsOf(part.size, count);
      if (!elements || part.at > count - *elements)
        fail(at, "found " + value.dump() + ", which is more than the " + std::to_string(count) +
                     " elements of the local tensor");
      piece.parts.push_back(std::move(part));
    }
  }

  Trace& trace_;
  const TensorFile& file_;
};

}  // namespace

const char* toString(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::size_t Tensor::calls() const {
  std::int64_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.call);
  return static_cast<std::size_t>(most) + 1;
}

std::int64_t Trace::coordinate(std::int64_t rank, std::size_t axis) const {
  for (std::size_t a = mesh.size(); a-- > axis + 1;) rank /= mesh[a].size;
  return rank % mesh[axis].size;
}

Trace readTrace(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> paths;
  std::vector<std::string> descriptions;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (path.ends_with(kDescription)) descriptions.push_back(path);
    else if (it->path().extension() == ".safetensors") paths.push_back(path);
  }
  // Files that descriptions name are read through them.
  if (!descriptions.empty()) paths = std::move(descriptions);
  if (error)
    throw InputError(directory, "",
                     "cannot be read: " + error.message() + "; expected a directory of traces");
  if (paths.empty())
    throw InputError(directory, "",
                     "has no *.safetensors and no *.trace.json, expected files of each rank");
  std::sort(paths.begin(), paths.end());
  Trace trace;
  trace.directory = directory;
  std::set<std::int64_t> ranks;
  for (const std::string& path : paths) {
    if (path.ends_with(kDescription))
      trace.files.push_back(std::make_unique<DescribedArrays>(path));
    else trace.files.push_back(std::make_unique<SafetensorsFile>(path));
    ranks.insert(FileReader(trace, *trace.files.back()).read());
  }
  for (std::int64_t rank = 0; rank < trace.world; ++rank)
    if (!ranks.contains(rank))
      throw InputError(directory, "",
                       "has no file of rank " + std::to_string(rank) + ", expected files of " +
                           std::to_string(trace.world) + " ranks");
  return trace;
}

std::vector<std::string> perturbedOf(const std::string& directory) {
  std::vector<std::string> found;
  for (int draw = 1;; ++draw) {
    const fs::path path = fs::path(directory) / ("draw" + std::to_string(draw));
    std::error_code error;
    if (!fs::is_directory(path, error)) return found;
    found.push_back(path.string());
  }
}

}  // namespace shardproof::compare
