from vitling.errors import UserError, did_you_mean


def test_a_name_that_is_listed_twice_is_suggested_once():
    assert did_you_mean("resnet19", ["resnet18", "vit", "resnet18"]) == "Did you mean resnet18?"
    assert did_you_mean("x", ["b", "a", "b"]) == "Allowed: a, b."


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)
