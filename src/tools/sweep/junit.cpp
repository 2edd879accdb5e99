// SPDX-License-Identifier: Apache-2.0
#include "sweep/junit.h"

#include <pugixml.hpp>
#include <sstream>

#include "report/xml_text.h"

namespace shardproof::sweep {
namespace {

std::string messageOf(const Result& result, Outcome outcome) {
  switch (outcome) {
    case Outcome::kFailed: {
      std::string text = std::string(shardproof::toString(*result.verdict)) + ", expected " +
                         shardproof::toString(result.expect);
      const Json& defects = result.report.at("defects");
      if (!defects.empty()) text += ": " + defects.front().at("message").get<std::string>();
      return text;
    }
    case Outcome::kInterrupted:
    case Outcome::kNotRun:
      return "the sweep was interrupted";
    default:
      return result.reason;
  }
}

void setText(pugi::xml_node node, const char* attribute, const std::string& text) {
  node.append_attribute(attribute).set_value(xmlText(text).c_str());
}

}  // namespace

std::string junitText(const Sweep& sweep) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node suites = document.append_child("testsuites");
  pugi::xml_node suite = suites.append_child("testsuite");
  setText(suite, "name", "shardproof sweep " + sweep.config);
  unsigned failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  for (const Result& result : sweep.results) {
    pugi::xml_node test = suite.append_child("testcase");
    setText(test, "classname", "shardproof.sweep");
    setText(test, "name", result.name);
    setText(test, "time", xmlSeconds(result.seconds()));
    seconds += result.seconds();
    const Outcome outcome = outcomeOf(result);
    if (outcome == Outcome::kPassed) continue;
    const bool failure = outcome == Outcome::kFailed || outcome == Outcome::kConditional,
               skip = outcome == Outcome::kSkipped;
    ++(failure ? failures : skip ? skipped : errors);
    pugi::xml_node child = test.append_child(failure ? "failure" : skip ? "skipped" : "error");
    setText(child, "message", messageOf(result, outcome));
    if (skip) continue;
    setText(child, "type", toString(outcome));
    if (!result.text.empty()) child.text().set(xmlText(result.text).c_str());
  }
  const auto count = [&](pugi::xml_node node) {
    node.append_attribute("tests") = static_cast<unsigned>(sweep.results.size());
    node.append_attribute("failures") = failures;
    node.append_attribute("errors") = errors;
    node.append_attribute("skipped") = skipped;
    node.append_attribute("time") = xmlSeconds(seconds).c_str();
  };
  count(suites);
  count(suite);
  std::ostringstream text;
  document.save(text, " ", pugi::format_default, pugi::encoding_utf8);
  return text.str();
}

}  // namespace shardproof::sweep
