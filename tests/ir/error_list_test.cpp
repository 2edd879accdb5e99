// SPDX-License-Identifier: Apache-2.0
#include "ir/error_list.h"

#include <gtest/gtest.h>

namespace shardproof::ir {
namespace {

void fail(int i) { throw InputError("f", "/" + std::to_string(i), "wrong"); }

TEST(ErrorList, OneIsItselfAndSeveralAreTogether) {
  ErrorList errors;
  EXPECT_NO_THROW(errors.throwIfAny());
  EXPECT_TRUE(errors.attempt([] {}));
  EXPECT_FALSE(errors.attempt([] { fail(1); }));
  try {
    errors.throwIfAny();
    FAIL();
  } catch (const InputErrors&) {
    FAIL() << "one is not several";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/1");
  }
  EXPECT_TRUE(errors.empty());  // so that who catches it can add it
  errors.attempt([] { fail(1); });
  errors.attempt([] { fail(2); });
  try {
    errors.throwIfAny();
    FAIL();
  } catch (const InputErrors& all) {
    ASSERT_EQ(all.all().size(), 2u);
    EXPECT_EQ(all.all()[1].pointer(), "/2");
    EXPECT_FALSE(all.more());
    EXPECT_EQ(std::string(all.what()), "f: /1: wrong");  // of those who ask for one only
  }
}

TEST(ErrorList, StopsAfterTwentyThroughAllThatIsAroundIt) {
  ErrorList outer;
  int tried = 0;
  try {
    outer.attempt([&] {
      ErrorList inner;
      for (int i = 0; i < 100; ++i) inner.attempt([&] { ++tried, fail(i); });
      inner.throwIfAny();
    });
    FAIL();
  } catch (const InputErrors& all) {
    EXPECT_EQ(all.all().size(), InputErrors::kMost);
    EXPECT_TRUE(all.more());
  }
  EXPECT_EQ(tried, static_cast<int>(InputErrors::kMost) + 1);
}

TEST(ErrorList, OtherExceptionsPass) {
  ErrorList errors;
  EXPECT_THROW(errors.attempt([] { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace shardproof::ir
