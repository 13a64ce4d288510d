"""Animals, food, and the times of day and year."""

from __future__ import annotations

from headwise.tasks.builtin.commonsense_relation import Relation, relation

NATURE: dict[str, Relation] = {
    "young": relation(
        "animal",
        (
            "A baby {} is called",
            "The child of a mother {} is called",
            "A very young {} is known as",
            "The proper name for a baby {} is",
            "What do you call a baby {}?",
        ),
        """
        a puppy ~ a pup: dog; poodle
        a kitten: cat; house cat
        a calf: cow; elephant; giraffe; hippopotamus; buffalo; rhinoceros
        a calf ~ a pup ~ a cub ~ a fawn: whale; dolphin; moose
        a foal: horse; donkey; zebra; pony
        a lamb: sheep
        a kid: goat; mountain goat
        a piglet: pig; wild boar
        a chick: chicken; penguin; sparrow; stork; robin; pigeon
        a duckling ~ a chick: duck; wild duck
        a gosling ~ a chick: goose; wild goose
        a cygnet ~ a chick: swan
        a cub: bear; lion; tiger; leopard; panda; cheetah; polar bear
        a pup ~ a cub ~ a calf ~ a puppy: seal; otter; sea lion; wolf
        a fawn ~ a calf ~ a kid: deer
        a joey: kangaroo; koala; wallaby
        """,
    ),
    "sound": relation(
        "animal",
        (
            "The sound that {} makes is called",
            "Of all animal sounds, the one that belongs to {} is",
            "If {} is nearby, you may hear",
            "What sound does {} make?",
        ),
        """
        a bark ~ a howl ~ a squeak: a dog; a puppy; a watchdog
        a howl ~ a bark: a wolf; a coyote
        a meow ~ a hiss: a cat; a kitten
        a moo ~ a bleat: a cow; a calf
        a roar: a lion; a tiger
        a neigh: a horse; a foal; a pony
        a quack: a duck; a mallard
        a hiss: a snake; a cobra; a viper
        a croak: a frog; a toad; a bullfrog
        a buzz: a bee; a mosquito; a fly; a wasp; a hornet
        a chirp ~ a squeak: a cricket; a sparrow; a canary; a baby chick
        a cluck: a hen; a mother hen
        a hoot: an owl
        a bleat: a sheep; a goat; a lamb
        an oink ~ a squeak: a pig; a piglet
        a squeak: a mouse; a guinea pig
        a caw ~ a croak: a crow; a raven
        a gobble ~ a cluck: a turkey
        a honk ~ a hiss: a goose; a wild goose
        a coo: a dove; a pigeon
        """,
    ),
    "habitat": relation(
        "animal",
        (
            "As a rule, {} lives",
            "In the wild or on a farm, you can find {}",
            "When it is at home, {} is",
            "Where does {} live?",
        ),
        """
        in a hive: a honeybee; a queen bee; a worker bee
        in a nest in a tree ~ in a barn: a sparrow; a robin; a songbird; a blackbird
        in a web ~ in a burrow ~ in a barn ~ in the desert: a garden spider; a black widow
        in a burrow ~ in the desert ~ on the savanna: a mole; a badger; a wild rabbit; a prairie dog; a gopher
        in the sea: a whale; a shark; an octopus; a dolphin; a jellyfish; a lobster; a starfish; a tuna; a squid
        in a barn: a dairy cow; a farm horse; a goat kept by a farmer
        in the desert ~ in a burrow ~ on the savanna ~ in a barn: a camel; a desert fox; a desert lizard
        in an anthill ~ in a burrow: an ant; an ant queen
        on the ice of the Arctic ~ in the sea: a polar bear; a walrus
        on the savanna ~ in the desert: a zebra; a giraffe; a wildebeest; a lion; a cheetah; a gazelle
        in a bamboo forest: a giant panda; a baby panda
        in a pond: a tadpole; a carp; a newt; a bullfrog
        """,
    ),
    "animal kind": relation(
        "animal",
        (
            "To a biologist, {} is",
            "Children learn at school that {} is",
            "In a book about animals you can read that {} is",
            "What kind of animal is {}?",
        ),
        """
        a bird: a robin; an eagle; a penguin; an ostrich; an owl; a sparrow; a parrot; a swan; a pigeon; a seagull
        a bird: a chicken; a turkey; a hummingbird; a stork; a duck; a flamingo; a crow
        a fish: a salmon; a trout; a shark; a tuna; a goldfish; an eel; a carp; a herring; a seahorse; a sardine
        an insect: an ant; a bee; a butterfly; a mosquito; a beetle; a grasshopper; a ladybug; a dragonfly; a wasp
        a reptile: a snake; a lizard; a crocodile; a turtle; an alligator; an iguana; a gecko; a cobra
        a mammal: a whale; a bat; a dog; an elephant; a mouse; a dolphin; a kangaroo; a horse; a cat; a seal; a rabbit
        an amphibian: a frog; a toad; a salamander; a newt
        """,
    ),
    "ingredient": relation(
        "food",
        (
            "To make {}, you start with",
            "Cooks all over the world make {} from",
            "There would be no {} in the world without",
            "What do you need to make {}?",
        ),
        """
        milk ~ sugar ~ eggs ~ soybeans: cheese; butter; yogurt; whipped cream; ice cream
        flour ~ milk ~ eggs ~ corn ~ rice ~ oats ~ barley: bread; pasta; noodles; pizza dough; pie crust
        grapes ~ sugar ~ apples ~ plums: wine; raisins; champagne
        oranges ~ sugar ~ lemons: orange juice; orange marmalade
        potatoes ~ milk ~ eggs ~ olives: french fries; mashed potatoes; potato chips; hash browns
        tomatoes ~ sugar ~ olives ~ milk ~ flour: ketchup; tomato soup; tomato sauce
        eggs ~ milk ~ flour: omelets; scrambled eggs; deviled eggs
        cocoa beans ~ milk ~ sugar: chocolate; cocoa powder
        corn ~ flour ~ milk ~ eggs ~ sugar: popcorn; cornflakes; cornbread
        barley ~ corn: malt; barley soup
        soybeans ~ flour: tofu; soy sauce; soy milk
        rice ~ milk ~ soybeans ~ cucumbers ~ avocados ~ eggs ~ sugar: risotto; rice pudding; sushi; fried rice
        pork ~ sugar ~ beef: ham; bacon; spare ribs
        beef ~ pork ~ bread ~ tomatoes: hamburgers; roast beef; beef jerky
        apples ~ sugar: cider; applesauce; apple juice
        peanuts ~ sugar: peanut butter; peanut brittle
        olives: olive oil
        avocados ~ tomatoes ~ lemons: guacamole
        chickpeas ~ olives ~ lemons ~ flour: hummus; falafel
        cabbage: sauerkraut; coleslaw; kimchi
        cucumbers ~ sugar: pickles
        lemons ~ sugar: lemonade; lemon juice
        sugar ~ milk ~ corn: caramel; cotton candy; lollipops
        oats ~ milk ~ sugar: oatmeal; granola
        bread ~ flour ~ olives ~ milk: toast; croutons; garlic bread
        strawberries ~ sugar ~ lemons: strawberry jam; strawberry jelly
        plums ~ sugar: prunes; plum jam
        """,
    ),
    "growing": relation(
        "food",
        (
            "With a little luck you can find {} growing",
            "In nature you will see {} growing",
            "He asked where one can find {} growing, and I told him:",
            "Where do you find {} growing?",
        ),
        """
        on a tree ~ on a bush: apples; cherries; pears; oranges; walnuts; olives; peaches; lemons; plums; acorns
        under the ground ~ in a field: potatoes; carrots; radishes; beets; turnips; peanuts; sweet potatoes
        on a bush ~ in a field: blueberries; raspberries; gooseberries; currants; rose hips
        on a vine ~ on a bush ~ in a field: grapes; cucumbers
        in a field: wheat; rye; barley; oats
        in the sea: seaweed; kelp
        """,
    ),
    "taste": relation(
        "food",
        (
            "The taste of {} is",
            "If you put {} in your mouth, you find it",
            "On your tongue, {} tastes",
            "How does {} taste?",
        ),
        """
        sweet: sugar; honey; candy; maple syrup; a ripe peach; cotton candy; a lollipop; icing; marzipan; molasses
        sour ~ bitter: a lemon; vinegar; a lime; an unripe gooseberry; lemon juice
        salty ~ bitter: sea water; soy sauce; an anchovy; a pretzel; a salted peanut; bacon
        bitter ~ sour: black coffee; unsweetened cocoa; grapefruit peel; a dandelion leaf
        spicy ~ salty: a chili pepper; wasabi; cayenne pepper; a hot curry
        """,
    ),
    "season": relation(
        "time",
        (
            "The season in which {} is",
            "You know what season it is when {}:",
            "It is the time of year when {}; it must be",
            "What season is it when {}?",
        ),
        """
        winter: children build snowmen; the lakes freeze over; the days are shortest; people shovel snow
        winter: bears sleep in their dens; icicles hang from the roofs; children go sledding; it gets dark at four
        summer: people swim in the lakes; the days are longest; people get sunburned; schools close for a long vacation
        summer: heat waves are common; people eat the most ice cream
        summer: tourists fill the beaches; air conditioners run all day
        spring: the snow melts; the first flowers bloom; trees get new leaves; birds return from the south
        spring: apple trees blossom; daffodils bloom; farmers sow; bears wake up from their long sleep
        fall: leaves turn red and yellow; trees lose their leaves; pumpkins are harvested; birds fly south
        fall: squirrels bury nuts for later; people rake dead leaves; Halloween comes
        """,
    ),
    "daytime": relation(
        "time",
        (
            "On a normal day, {}",
            "You may have noticed that {}",
            "It is no secret that {}",
            "When is it that {}?",
        ),
        """
        in the morning: the sun rises; people eat breakfast; roosters crow
        in the morning: commuters travel to work; children go to school
        in the morning: alarm clocks ring; bakers sell the day's first rolls
        at noon ~ at night: the sun stands highest in the sky; shadows are shortest
        at noon ~ at night: the two hands of a clock point straight up
        at night ~ in the evening: the stars shine; owls hunt; bats fly about; most people are asleep; the moon shines
        in the evening ~ at night: the sun sets; the sky turns dark; the street lamps are switched on
        in the evening ~ at night: families have dinner; children are put to bed
        in the afternoon ~ at noon: school lets out; children come home from school
        """,
    ),
    "month": relation(
        "time",
        (
            "Every year people celebrate {}",
            "On the calendar you will find {}",
            "Look at the date of {}: it is",
            "When is {}?",
        ),
        """
        in December: Christmas; Christmas Eve; New Year's Eve; Boxing Day
        in January: New Year's Day; Martin Luther King Day
        in February: Valentine's Day; Groundhog Day
        in March: Saint Patrick's Day
        in April: April Fools' Day; Earth Day
        in July: American Independence Day; Bastille Day; Canada Day
        in September: American Labor Day
        in October: Halloween; German Unity Day
        in November: American Thanksgiving; Veterans Day
        """,
    ),
    "duration": relation(
        "time",
        (
            "Usually, {} takes",
            "The time you need for {} is",
            "If you ask how long {} takes, the answer is",
            "How long does {} take?",
        ),
        """
        about a second: a sneeze; a blink; a handclap; a hiccup; flipping a switch
        a few minutes: boiling an egg; brushing your teeth; making a cup of tea; singing a song; washing your hands
        a few minutes: toasting a slice of bread; eating an apple; frying an egg
        a few hours: a flight across the Atlantic; roasting a big turkey; a night's sleep; watching an opera
        a few hours: running a marathon; painting a room; driving two hundred miles
        many years: growing up; building a cathedral; becoming a surgeon; the growth of an oak tree
        many years: raising a child; paying off a house; writing ten novels
        """,
    ),
}
