// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/report_facts.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/claims.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/summary.h"

namespace kuafu {
namespace {

Derived derived_in(const RunRecord& record, const Suite* suite, bool is_asked,
                   const std::string& folder) {
  const bool has_own = record.header.is_object() && record.header.contains("derived");
  if (suite != nullptr && (is_asked || !has_own)) return suite->derived;
  if (!has_own) return {};
  const Json& own = record.header["derived"];
  // The suite's file says where its scripts are.
  if (suite != nullptr && to_json(suite->derived) == own) return suite->derived;
  return derived_of(own, folder);
}

}  // namespace

Json report_facts(const RunRecord& record, const Suite* suite, bool is_asked,
                  const std::string& folder) {
  const Derived derived = derived_in(record, suite, is_asked, folder);
  Json facts;
  const bool is_own = has_references(record.header) && (suite == nullptr || !is_asked);
  if (suite != nullptr || is_own) {
    const std::vector<std::string> order = is_own ? order_in(record.header) : order_of(*suite);
    const auto expected = is_own ? references_in(record.header, folder) : suite->references;
    Json references = Json::array();
    for (const ReferenceResult& r : check_references(expected, order, record)) {
      references.push_back({{"what", r.what}, {"checked", r.checked}, {"broken", r.broken}});
    }
    facts = {{"order", order}, {"references", references}};
  }
  if (!derived.is_empty()) facts["derived"] = derived_json(Rows(derived, record, suite));
  const std::vector<std::string> notes = notes_of_builds(record);
  if (!notes.empty()) facts["notes"] = notes;
  return facts;
}

std::string handed_on(const Json& facts) {
  const std::string content = facts.dump();
  const int file = ::memfd_create("suite-facts", 0);
  KUAFU_REQUIRE(file >= 0, "cannot make a file in memory: ", std::strerror(errno));
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::write(file, content.data() + done, content.size() - done);
    KUAFU_REQUIRE(count > 0, "cannot write a file in memory: ", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  return text("/proc/self/fd/", file);
}

}  // namespace kuafu
