// SPDX-License-Identifier: Apache-2.0
#include "writer/write_capture.h"

namespace shardproof {

void writeCapture(JsonWriter& json, const Capture& capture) {
  json.beginObject(JsonWriter::kLines);
  if (!capture.source.empty()) json.key("source").text(capture.source);
  if (!capture.compared.empty()) {
    json.key("compared").beginObject();
    for (const ComparedOutputs& kind : capture.compared) {
      json.key(kind.kind).beginList();
      for (const std::string& output : kind.outputs) json.text(output);
      json.endList();
    }
    json.endObject();
  }
  if (!capture.notCompared.empty()) {
    json.key("not_compared").beginList(JsonWriter::kLines);
    for (const NotCompared& item : capture.notCompared) {
      json.beginObject().key("what").text(item.what).key("because").text(item.because);
      json.endObject();
    }
    json.endList();
  }
  if (!capture.assumptions.empty()) {
    json.key("assumptions").beginList(JsonWriter::kLines);
    for (const Assumption& assumption : capture.assumptions) {
      json.beginObject().key("name").text(assumption.name);
      json.key("class").text(toString(assumption.kind)).key("text").text(assumption.text);
      json.endObject();
    }
    json.endList();
  }
  json.endObject();
}

}  // namespace shardproof
