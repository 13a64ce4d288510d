"""What things are made of, what they look and feel like, what they are, and what they need."""

from __future__ import annotations

from headwise.tasks.builtin.commonsense_relation import Relation, relation

THINGS: dict[str, Relation] = {
    "material": relation(
        "physics",
        (
            "Most of the time, {} is made of",
            "The usual material of {} is",
            "If you look closely at {}, you see that it is made of",
            "What is {} made of?",
        ),
        """
        wood: a log; a tree trunk; a violin; a log cabin; a totem pole; a matchstick
        wood ~ plastic ~ metal ~ stone: a picnic table; a baseball bat; a rowboat; a fence post; a bookshelf
        glass ~ plastic: a window pane; a light bulb; a wine bottle; an aquarium; a test tube; a jam jar; a lens
        metal: a nail; a coin; a sword; a padlock; an anchor; a horseshoe; a railroad track; an anvil; a bullet
        metal ~ plastic: a paper clip; a frying pan; a screw; a trumpet; a bicycle chain
        paper: a newspaper; a page of a book; an envelope; a postage stamp; a poster; a wall calendar; a paper airplane
        leather ~ rubber ~ plastic: a saddle; a baseball glove; a cowboy boot; a horse's bridle; a holster
        wool ~ cotton: a knitted sweater; a knitted scarf; a ball of yarn; a warm winter sock
        cotton ~ wool ~ paper: a T-shirt; a bed sheet; a pair of jeans; a bath towel; a handkerchief
        rubber ~ plastic: a car tire; an inner tube; a bouncy ball; a pencil eraser; a rubber band
        stone: an Egyptian pyramid; a gravestone; a castle wall; a cobbled street; a cathedral
        clay ~ stone ~ plastic: a brick; a roof tile; a potter's jug
        wax: a candle; a honeycomb; a crayon
        ice: an icicle; a glacier; an iceberg; a frozen pond; a skating rink
        plastic ~ paper ~ metal: a shopping bag; a drinking straw; a credit card; a trash bag; a water pistol
        """,
    ),
    "color": relation(
        "physics",
        (
            "If you look at {}, the color you see is",
            "Everybody knows that the usual color of {} is",
            "For a picture of {}, you need paint that is",
            "What color is {}?",
        ),
        """
        red ~ orange ~ white: a ripe tomato; a stop sign; blood
        red ~ orange ~ white: a ripe strawberry; Santa's coat; a boiled lobster
        red ~ black ~ yellow ~ orange: a ladybug; a ripe cherry; a fire engine
        green ~ yellow: grass in spring; a cucumber; spinach; a tree frog; a cactus
        green ~ yellow: a pine needle; broccoli; a lime; a pea
        yellow ~ white ~ brown: a lemon; a ripe banana; butter; a baby chick; a sunflower; mustard
        yellow ~ orange: the yolk of an egg; a school bus
        white ~ black ~ yellow: fresh snow; milk; a polar bear; flour; salt; a swan; a snowman; a healthy tooth
        black ~ gray ~ brown: coal; a raven; soot; a car tire; tar; a crow; a witch's hat
        blue ~ purple: the sky on a sunny day; a sapphire; a bluebird; a cornflower
        orange ~ red ~ yellow: a carrot; a pumpkin; a tangerine; a traffic cone
        brown ~ black ~ white ~ gray ~ red ~ green: chocolate; a chestnut; mud; a coffee bean; a walnut; a grizzly bear
        pink ~ white ~ black ~ brown ~ red ~ gray ~ orange: a flamingo; a piglet; a baby's lips
        gray ~ white ~ black ~ blue ~ brown ~ pink: an elephant; concrete; ash; a rhinoceros; a dolphin
        purple ~ black ~ pink ~ white ~ blue: an eggplant; lilac; lavender
        """,
    ),
    "quality": relation(
        "physics",
        (
            "Anybody can tell you that {} is",
            "One thing is certain about {}: it is",
            "If you had to describe {} in one word, you would say",
            "Which word describes {}?",
        ),
        """
        hot ~ loud: boiling water; a burning coal; molten lava; a candle flame; the inside of an oven
        cold ~ slippery ~ soft: an ice cube; fresh snow; the inside of a freezer; a winter night at the North Pole
        sharp: a razor blade; the tip of a needle; a piece of broken glass; a shark's tooth; a thorn
        soft ~ sweet ~ heavy: a pillow; a kitten's fur; cotton wool; a feather bed; a teddy bear
        sticky ~ sweet ~ soft: glue; chewing gum; sap from a pine tree
        sweet ~ sticky: sugar; maple syrup; honey; cotton candy; caramel
        heavy ~ loud ~ slippery: an elephant; a loaded truck; an anvil; a grand piano; a whale
        slippery ~ soft ~ cold ~ sweet ~ sticky: a wet bar of soap; a banana peel; an icy road; an eel
        loud ~ hot ~ heavy: a jet engine; a clap of thunder; a fire alarm; a rock concert; a jackhammer
        round ~ heavy ~ cold ~ slippery ~ soft: a marble; a wheel; the full moon; a soccer ball; a soap bubble
        """,
    ),
    "kind": relation(
        "thing",
        (
            "Everybody agrees that {} is",
            "As even a child can tell you, {} is",
            "In the quiz they asked what {} is, and he said:",
            "What kind of thing is {}?",
        ),
        """
        a fruit: an apple; a banana; a pear; a mango; a pineapple; a melon; a grapefruit; a strawberry; a blueberry
        a vegetable: a carrot; broccoli; spinach; a cabbage; cauliflower; a turnip; lettuce; celery; a radish
        a piece of furniture: a table; a sofa; a bed; a wardrobe; a bookcase; an armchair; a desk; a dresser
        a musical instrument: a violin; a guitar; a trumpet; a piano; a flute; a drum; a cello; a harp; a clarinet
        a vehicle: a car; a truck; a bus; a motorcycle; a tractor; a van; a taxi
        a piece of clothing: a shirt; a skirt; a coat; a sweater; a dress; a jacket; a sock; a blouse
        a drink: lemonade; coffee; tea; beer; orange juice; cola; milk
        a flower: a tulip; a daisy; a lily; an orchid; a daffodil; a carnation; a sunflower
        a tree: an oak; a birch; a maple; a pine; a willow; a beech; a fir
        a metal ~ a color: iron; copper; gold; aluminum; tin; lead; zinc; silver
        a gemstone ~ a color ~ a shape: a diamond; a ruby; an emerald; a sapphire; an opal
        a color ~ an emotion: red; yellow; green; blue; pink
        a sport: tennis; soccer; basketball; ice hockey; volleyball; baseball; badminton; rugby
        a disease: malaria; measles; cholera; tuberculosis; smallpox
        a planet: Mars; Jupiter; Saturn; Venus; Neptune
        a country: France; Japan; Brazil; Egypt; Canada; India; Norway; Kenya
        a city: Paris; London; Tokyo; Rome; Berlin; Madrid; Moscow; Cairo
        a river: the Nile; the Amazon; the Danube; the Mississippi; the Thames
        a mountain: Mount Everest; Kilimanjaro; the Matterhorn; Mont Blanc
        a shape: a square; a circle; a rectangle; an oval
        a tool ~ a weapon: a hammer; a saw; a screwdriver; a wrench; a chisel; a rake
        a weapon: a sword; a spear; a rifle; a cannon; a dagger
        a spice: cinnamon; black pepper; nutmeg; paprika; cumin
        a dance: the waltz; the tango; the polka; the foxtrot
        a toy ~ a musical instrument: a doll; a teddy bear; a yo-yo; a rattle
        a building: a church; a castle; a skyscraper; a barn; a hotel; a palace
        a number: seven; twelve; forty; ninety
        an emotion: anger; fear; joy; jealousy; sadness
        a school subject: geography; algebra; chemistry; history; biology
        a month: April; October; January; November
        a day of the week: Monday; Wednesday; Thursday; Saturday
        a dessert: ice cream; apple pie; tiramisu; cheesecake
        """,
    ),
    "part": relation(
        "thing",
        (
            "We all know that {} is part of",
            "If you find {}, it belongs to",
            "Where there is {}, there is probably",
            "What is {} a part of?",
        ),
        """
        a flower: a petal; a stamen
        a tree: a branch; a twig; a treetop
        a book: a chapter; a table of contents; a page
        a bicycle: a handlebar; a spoke; a bicycle chain
        a car ~ an airplane ~ a ship: a windshield; a license plate; a glove compartment; a tailpipe
        an airplane: a cockpit; a jet engine; landing gear
        a ship: an anchor; a mast; a gangway; a ship's deck
        a house ~ a castle ~ a church ~ a school ~ a hospital ~ a door: a chimney; a front door; a living room; an attic
        a computer: a hard drive; a motherboard; a computer chip
        a hand: a thumb; a finger; a knuckle
        a face ~ an airplane: a nose; a chin; a cheek; an eyebrow; a forehead
        a foot: a toe; an ankle
        a shirt: a collar; a sleeve; a cuff
        a bird: a beak; a feathered wing
        a fish: a gill; a fin
        a clock ~ a face ~ a hand: an hour hand; a minute hand
        a song ~ an orchestra ~ a play: a chorus; a melody
        a sentence ~ a book ~ a song ~ a play: a verb; a noun; a comma
        a play ~ a book: an act; a scene on a stage
        a church: a steeple; an altar; a pulpit
        a train: a locomotive; a dining car; a caboose
        a castle ~ a house: a drawbridge; a moat; a dungeon
        an egg: a yolk; an eggshell
        a piano ~ a computer: a black key; a white key
        a bed: a mattress; a headboard
        a door ~ a house ~ a church ~ a car ~ a castle ~ a hospital ~ a school: a doorknob; a keyhole; a door handle
        an orchestra: a violinist; a row of cellists; a brass section
        a deck of cards: an ace of spades; the queen of hearts; a joker
        a ladder: a rung
        a hospital: an operating room; an emergency room; an intensive care unit
        a school: a classroom; a schoolyard; a principal's office
        a city: a suburb; a city hall; a subway system
        """,
    ),
    "need": relation(
        "thing",
        (
            "More than anything else, {} needs",
            "It is hard to imagine {} without",
            "If there is one thing that {} cannot do without, it is",
            "What does {} need most?",
        ),
        """
        fuel: a car; a truck; a jet; a motorboat; a tractor
        electricity: a toaster; a refrigerator; a television; a vacuum cleaner; a microwave; a light bulb
        electricity ~ batteries: a computer; an electric guitar; a phone
        wind: a sailboat; a windmill; a kite; a wind turbine
        water ~ sunlight ~ electricity ~ animals: a goldfish; a swimming pool; a dolphin
        water ~ sunlight ~ electricity ~ animals: a waterfall; an aquarium; a lake
        sunlight ~ water: a solar panel; a sundial; a sunflower
        batteries ~ electricity: a flashlight; a remote control; a walkie-talkie
        ink: a fountain pen; a ballpoint; a rubber stamp
        books ~ electricity ~ customers: a library; a bookstore; a bookworm
        players: a soccer team; a baseball team; a chess club
        singers ~ actors ~ players: a choir; an opera; a chorus
        actors ~ electricity ~ players: a theater company; a movie; a stage play
        students ~ books ~ electricity: a school; a college; a university
        patients ~ electricity ~ customers: a dentist; a surgeon; a doctor
        animals ~ customers ~ water: a zoo; a pet shop; an animal shelter
        snow: a skier; a ski slope; a snowman
        waves ~ water: a surfer; a surfing contest
        customers ~ electricity: a shop; a department store; a supermarket; a salesman
        flour ~ customers ~ water ~ electricity: a baker; a loaf of bread
        firewood: a campfire; a wood stove
        voters: an election; a democracy
        """,
    ),
}
