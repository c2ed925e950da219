#include "wire.h"

#include <limits>
#include <string>

#include "check.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

using namespace std::string_literals;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// The result of one read: the fault, or the number of consumed bytes.
struct Read {
  FaultCode code;
  std::uint64_t value = 0;
  std::size_t taken = 0;
  std::size_t failed_at = 0;
};

template <class F>
Read read(const std::string& data, F&& f) {
  const Exact copy(data);
  Reader reader(copy.bytes());
  Read result{};
  const Failure failure = f(reader, result.value);
  result.code = failure.code;
  if (failure) {
    result.failed_at = static_cast<std::size_t>(failure.at - copy.bytes().begin);
  } else {
    result.taken = static_cast<std::size_t>(reader.at() - copy.bytes().begin);
  }
  return result;
}

Read read_varint(const std::string& data) {
  return read(data, [](Reader& reader, std::uint64_t& value) { return reader.varint(value); });
}

Read read_tag(const std::string& data) {
  return read(data, [](Reader& reader, std::uint64_t& value) {
    std::uint32_t tag = 0;
    const Failure failure = reader.tag(tag);
    value = tag;
    return failure;
  });
}

Read read_bytes(const std::string& data) {
  return read(data, [](Reader& reader, std::uint64_t& size) {
    Bytes bytes;
    const Failure failure = reader.bytes(bytes);
    size = bytes.size();
    return failure;
  });
}

// Reads a tag and skips its field.
Read skip(const std::string& data) {
  return read(data, [](Reader& reader, std::uint64_t&) {
    std::uint32_t tag;
    if (Failure failure = reader.tag(tag)) return failure;
    return reader.skip(tag);
  });
}

std::string open(std::uint32_t field) { return tag(field, kStartGroup); }
std::string close(std::uint32_t field) { return tag(field, kEndGroup); }

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(round_trip_of_varints) {
  for (int bits = 0; bits <= 64; ++bits) {
    const std::uint64_t most = bits == 0 ? 0 : kMost >> (64 - bits);
    for (const std::uint64_t value : {most, most / 2 + 1, most - (bits != 0)}) {
      std::uint8_t written[10];
      const auto size = static_cast<std::size_t>(write_varint(written, value) - written);
      CHECK(size == varint_size(value));
      CHECK(text({written, written + size}) == varint(value));
      const Read found = read_varint(varint(value) + "rest");
      CHECK(found.code == FaultCode::none && found.value == value && found.taken == size);
    }
  }
}

TEST(longest_varint_has_ten_bytes) {
  CHECK(read_varint("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").value == kMost);
  CHECK(read_varint("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"s).value == 0);
  CHECK(read_varint("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"s).taken == 10);
  // protobuf drops bits above 64.
  CHECK(read_varint("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f").value == kMost);
  CHECK(read_varint("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"s).code == FaultCode::varint);
}

TEST(varint_truncated_at_any_byte) {
  const std::string whole = varint(kMost);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK(read_varint(whole.substr(0, size)).code == FaultCode::varint);
  }
}

TEST(tags_have_32_bits_in_five_bytes) {
  CHECK(read_tag(varint(8)).value == 8);
  CHECK(read_tag(varint(0xffffffffU)).value == 0xffffffffU);
  CHECK(read_tag(varint(0x100000000U)).code == FaultCode::tag);
  CHECK(read_tag("\x88\x80\x80\x80\x00"s).value == 8);
  CHECK(read_tag("\x88\x80\x80\x80\x80\x00"s).code == FaultCode::tag);
  CHECK(read_tag(varint(kMost)).code == FaultCode::tag);
}

TEST(field_number_0_is_a_fault) {
  for (std::uint64_t type = 0; type < 8; ++type) {
    CHECK(read_tag(varint(type)).code == FaultCode::tag);
  }
}

TEST(length_is_compared_with_the_rest) {
  CHECK(read_bytes(varint(3) + "abc").value == 3);
  CHECK(read_bytes(varint(3) + "abcd").taken == 4);
  CHECK(read_bytes(varint(0)).value == 0);
  CHECK(read_bytes(varint(4) + "abc").code == FaultCode::length);
  CHECK(read_bytes(varint(kMost) + "abc").code == FaultCode::length);
  CHECK(read_bytes(varint(kMost - 9) + "abc").code == FaultCode::length);
  CHECK(read_bytes(varint(std::uint64_t{1} << 63) + "abc").code == FaultCode::length);
  CHECK(read_bytes("").code == FaultCode::varint);
}

TEST(fields_of_every_wire_type_are_skipped) {
  const std::string fields[] = {
      tag(9, kVarint) + varint(kMost),
      tag(9, kFixed64) + "12345678",
      field(9, "some bytes"),
      field(9, ""),
      tag(9, kFixed32) + "1234",
      open(9) + close(9),
      open(9) + field(1, "x") + tag(2, kFixed32) + "1234" + close(9),
  };
  for (const std::string& each : fields) {
    CHECK(skip(each).code == FaultCode::none);
    CHECK(skip(each + field(1, "rest")).taken == each.size());
    for (std::size_t size = 0; size < each.size(); ++size) {
      CHECK(skip(each.substr(0, size)).code != FaultCode::none);
    }
  }
}

TEST(reserved_wire_types_are_a_fault) {
  CHECK(skip(tag(1, 6) + "12345678").code == FaultCode::tag);
  CHECK(skip(tag(1, 7) + "12345678").code == FaultCode::tag);
  CHECK(skip(open(1) + tag(1, 6) + close(1)).code == FaultCode::tag);
}

TEST(groups_nest_a_hundred_deep) {
  CHECK(skip(repeated(open(1), 100) + repeated(close(1), 100)).code == FaultCode::none);
  CHECK(skip(repeated(open(1), 101) + repeated(close(1), 101)).code == FaultCode::group);
  CHECK(skip(repeated(open(1), 100'000)).code == FaultCode::group);
  // Consecutive groups are not limited.
  const std::string row = open(1) + repeated(open(2) + close(2), 1000) + close(1);
  CHECK(skip(row).taken == row.size());
}

TEST(group_is_closed_by_its_number) {
  CHECK(skip(open(1)).code == FaultCode::group);
  CHECK(skip(open(1) + field(1, "x")).code == FaultCode::group);
  CHECK(skip(open(1) + close(2)).code == FaultCode::group);
  CHECK(skip(open(1) + open(2) + close(1) + close(2)).code == FaultCode::group);
  CHECK(skip(open(1) + open(2) + close(2)).code == FaultCode::group);
  CHECK(skip(close(1)).code == FaultCode::group);
}

TEST(fault_is_at_its_field) {
  CHECK(read_tag(varint(0)).failed_at == 0);
  CHECK(skip(tag(1, kLengthDelimited) + varint(9) + "x").failed_at == 1);
  CHECK(skip(tag(1, kFixed64) + "1234567").failed_at == 1);
  CHECK(skip(open(1) + field(2, "x") + varint(1)).failed_at == 4);
}

}  // namespace
}  // namespace covey::testing
